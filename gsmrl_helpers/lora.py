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
    """Names and tensors of the model without adapters that computes the same, one at a time.

    A model without adapters gives its own parameters. A merged matrix is a new tensor in the
    dtype of W: in bf16, an update smaller than half the spacing of W is rounded away in it, so
    the engine and the trainer may then differ by that much.
    """
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        if hasattr(module, "get_delta_weight"):
            (adapter,) = module.active_adapters
            weight = module.get_base_layer().weight
            merged = weight.float() + module.get_delta_weight(adapter).float()
            yield f"{prefix}weight", merged.to(weight.dtype)
            if module.get_base_layer().bias is not None:
                yield f"{prefix}bias", module.get_base_layer().bias
        elif ".base_layer" not in name and ".lora_" not in name:
            for own_name, parameter in module.named_parameters(recurse=False):
                yield f"{prefix}{own_name}", parameter.detach()
