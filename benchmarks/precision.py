"""The gradients of two programs compared without the noise of float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Olmo2ForCausalLM
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm, Olmo2RotaryEmbedding


@contextmanager
def in_float64(model: Olmo2ForCausalLM) -> Iterator[None]:
    """The model in float64 for a while, with what Hugging Face keeps in float32: norms and angles.

    Rows stand at other positions in the two programs, padded on the left in one. Rotary embeddings
    know distances only, but in float32 an angle at position 100 is off by 1e-5.
    """
    changed = [m for m in model.modules() if isinstance(m, Olmo2RMSNorm | Olmo2RotaryEmbedding)]
    for module in changed:
        exact = exact_norm if isinstance(module, Olmo2RMSNorm) else exact_rotary
        module.forward = partial(exact, module)
    model.double()
    try:
        yield
    finally:
        model.float()
        for module in changed:
            del module.forward


def exact_norm(norm: Olmo2RMSNorm, hidden_states: Tensor) -> Tensor:
    return F.rms_norm(hidden_states, norm.weight.shape, norm.weight, norm.variance_epsilon)


def exact_rotary(
    rotary: Olmo2RotaryEmbedding, hidden_states: Tensor, position_ids: Tensor
) -> tuple[Tensor, Tensor]:
    angles = position_ids[..., None].double() * rotary.inv_freq.double()
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * rotary.attention_scaling, angles.sin() * rotary.attention_scaling
