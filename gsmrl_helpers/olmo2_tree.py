"""The forward pass of OLMo-2 over a prompt tree: the same hidden states, fewer tokens.

Only attention sees the tree: a token attends to what its row has before it, the template and the
suffix being shared with other rows; their gradients add up by themselves.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F
from transformers import Olmo2ForCausalLM

from gsmrl_helpers.olmo2_block import olmo2_block
from gsmrl_helpers.prompt_tree import PromptTree
from gsmrl_helpers.rms_norm import rms_norm


def tree_hidden_states(model: Olmo2ForCausalLM, tree: PromptTree) -> Tensor:
    """(N, hidden) what the head reads, at every token of the tree's stream."""
    body = model.model
    hidden = body.embed_tokens(tree.token_ids)
    wide = torch.promote_types(hidden.dtype, torch.float32)
    angles = body.rotary_emb(hidden, tree.positions[None])
    cos, sin = (part[0, :, None].to(wide) for part in angles)  # (N, 1, head_dim)
    attention = TreeAttention(tree, hidden.dtype)
    for layer in body.layers:
        # Scaled angles are as good as scaled queries, and cost nothing per head.
        scaling = layer.self_attn.scaling
        hidden = olmo2_block(layer, hidden, (cos * scaling, sin * scaling), (cos, sin), attention)
    return rms_norm(body.norm, hidden)


class TreeAttention:
    """Causal attention along each row of the tree; the masks are made once for all layers."""

    def __init__(self, tree: PromptTree, dtype: torch.dtype) -> None:
        blocks = [tree.suffixes, *tree.responses]
        self.tree = tree
        self.shapes = [tuple(block.places.shape) for block in blocks]
        self.places = torch.cat([block.places.flatten() for block in blocks])
        self.is_token = torch.cat([block.is_token.flatten() for block in blocks]).nonzero()[:, 0]
        self.suffix_bias = bias(~tree.suffixes.is_token, dtype)[:, None]  # (U, 1, width)
        self.causal_bias = {
            width: bias(torch.ones(width, width, device=self.places.device).triu(1).bool(), dtype)
            for _, width in self.shapes
        }

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `olmo2_block`; queries are scaled."""
        groups = query.shape[1] // key.shape[1]  # grouped-query attention: heads that share keys
        if groups > 1:
            key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
        template, suffixes, *responses = zip(
            *(self.parts(states) for states in (query, key, value)), strict=True
        )
        # The template is one row.
        own = F.scaled_dot_product_attention(
            *(rearrange(states, "h t d -> 1 h t d") for states in template),
            is_causal=True,
            scale=1.0,
        )
        attended = [self.attend(suffixes, template[1:])]
        for block, states in zip(self.tree.responses, responses, strict=True):
            attended.append(self.attend(states, template[1:], suffixes[1:], block.prompt_of_row))
        rows = torch.cat([rearrange(x, "h r w d -> (r w) h d") for x in attended])
        return torch.cat([rearrange(own, "1 h t d -> t h d"), rows[self.is_token]])

    def parts(self, states: Tensor) -> list[Tensor]:
        """(N, heads, head_dim) to the template's (heads, t, head_dim), then every block's
        (heads, rows, width, head_dim)."""
        template = rearrange(states[: self.tree.template_length], "t h d -> h t d")
        # One split: slices would each leave a gradient as large as the whole.
        sizes = [rows * width for rows, width in self.shapes]
        padded = rearrange(states[self.places], "n h d -> h n d").split(sizes, dim=1)
        blocks = [x.unflatten(1, shape) for x, shape in zip(padded, self.shapes, strict=True)]
        return [template, *blocks]

    def attend(
        self,
        own: tuple[Tensor, ...],
        template: tuple[Tensor, ...],
        suffixes: tuple[Tensor, ...] = (),
        prompt_of_row: Tensor | None = None,
    ) -> Tensor:
        """One softmax over what a row shares with all rows, with its group, and its own tokens.

        Args:
            own: Queries, keys and values, each (heads, rows, width, head_dim).
            template: Keys and values, each (heads, t, head_dim).
            suffixes: Keys and values of all suffixes, each (heads, U, suffix width, head_dim),
                where rows are responses; each row attends to that of its prompt.
            prompt_of_row: (rows,) int64.

        Returns:
            (heads, rows, width, head_dim).
        """
        query, key, value = own
        shape = query.shape[1:3]
        scores = [(query.flatten(1, 2) @ template[0].mT).unflatten(1, shape)]
        values = [value]
        if suffixes:
            keys, suffix_values = (states[:, prompt_of_row] for states in suffixes)
            scores.append(query @ keys.mT + self.suffix_bias[prompt_of_row])
            values.insert(0, suffix_values)
        scores.append(query @ key.mT + self.causal_bias[shape[1]])
        sizes = [part.shape[-1] for part in scores]
        wide = torch.promote_types(value.dtype, torch.float32)
        weights = torch.cat(scores, dim=-1).softmax(dim=-1, dtype=wide).to(value.dtype)
        weights = weights.split(sizes, dim=-1)
        attended = (weights[0].flatten(1, 2) @ template[1]).unflatten(1, shape)
        for weight, part in zip(weights[1:], values, strict=True):
            attended = attended + weight @ part
        return attended


def bias(forbidden: Tensor, dtype: torch.dtype) -> Tensor:
    """-inf where it is forbidden to attend, else 0."""
    return torch.zeros(forbidden.shape, dtype=dtype, device=forbidden.device).masked_fill(
        forbidden, -torch.inf
    )
