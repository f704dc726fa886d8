"""Low-rank adapters: a few trainable parameters beside frozen weights, and the two merged.

A matrix W becomes W + (alpha / r) B A with A (r, in) and B (out, r); only A and B are trained
(Hu et al., 2021, "LoRA"). An engine that knows nothing of it is given the sum.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gsmrl_helpers.config import LoraSettings
from gsmrl_helpers.extras import import_extra


def add_lora(model: PreTrainedModel, settings: LoraSettings) -> PreTrainedModel:
    """Freeze the model and give every matrix of its layers an adapter, in place.

    The adapters are float32, whatever the model's dtype: so they need no master weights. B starts
    as 0, so the policy is at first what it was.

    Raises:
        ValueError: peft is not there; the message names the extra.
    """
    peft = import_extra("peft", "lora")
    peft_config = peft.LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, target_modules="all-linear"
    )  # all but the head
    model = peft.inject_adapter_in_model(peft_config, model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model


@torch.no_grad()
def merged_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of the model without adapters that computes the same, one after the other.

    A model without adapters gives its `state_dict`. A merged matrix is a new tensor in the dtype
    of W: in bf16 it has lost what is smaller than half the spacing of W, so that trainer and
    engine differ by as much.
    """
    modules = dict(model.named_modules())
    for name, tensor in model.state_dict().items():
        owner, is_adapted, own_name = name.rpartition(".base_layer.")
        if not is_adapted:
            if ".lora_" not in name:
                yield name, tensor
        elif own_name == "weight":
            (adapter,) = modules[owner].active_adapters
            change = modules[owner].get_delta_weight(adapter)
            yield f"{owner}.weight", (tensor.float() + change.float()).to(tensor.dtype)
        else:
            yield f"{owner}.{own_name}", tensor
