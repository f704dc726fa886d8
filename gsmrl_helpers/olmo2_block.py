"""OLMo-2's block on a flat list of tokens: what training and sampling have in common.

The layers' own modules do the work, so the weights are the policy's, not a copy. Who attends to
whom is not the block's business: it is handed a function.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers.models.olmo2.modeling_olmo2 import Olmo2DecoderLayer

from gsmrl_helpers.rms_norm import rms_norm

Angles = tuple[Tensor, Tensor]  # cosines and sines, (N, 1, head_dim) each
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (Su et al., 2021, equation 34): states (..., head_dim)."""
    first, second = states.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return torch.addcmul(states * cos, turned, sin).to(states.dtype)


def olmo2_block(
    layer: Olmo2DecoderLayer,
    hidden: Tensor,
    query_angles: Angles,
    key_angles: Angles,
    attend: Attend,
) -> Tensor:
    """Norms on queries and keys, and after each half instead of before it (OLMo et al., 2024).

    Args:
        layer: The policy's layer.
        hidden: (N, hidden).
        query_angles, key_angles: How far each token's queries and keys are turned.
        attend: From queries (N, heads, head_dim), keys and values (N, kv_heads, head_dim) to what
            is attended to, (N, heads, head_dim). Queries are scaled if their angles are.

    Returns:
        (N, hidden).
    """
    attention = layer.self_attn
    heads = -1, attention.head_dim  # not einops, whose own work is felt once a layer and token
    query = rms_norm(attention.q_norm, attention.q_proj(hidden)).unflatten(-1, heads)
    key = rms_norm(attention.k_norm, attention.k_proj(hidden)).unflatten(-1, heads)
    value = attention.v_proj(hidden).unflatten(-1, heads)
    attended = attend(rotate(query, *query_angles), rotate(key, *key_angles), value)
    attended = attention.o_proj(attended.flatten(-2))
    hidden = hidden + rms_norm(layer.post_attention_layernorm, attended)
    return hidden + rms_norm(layer.post_feedforward_layernorm, layer.mlp(hidden))
