"""One decoding step of OLMo-2 for many rows that share the beginning of their prompts.

The layers' own modules do the work, so the weights are the policy's, not a copy. What differs from
the Hugging Face forward pass: the template's keys and values exist once for all rows, and a step
does nothing but the step (no masks, caches or outputs to build anew for every token).
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor
from transformers import Olmo2ForCausalLM, PreTrainedModel
from transformers.models.olmo2.modeling_olmo2 import Olmo2DecoderLayer

from gsmrl_helpers.decoding import Decoder, HuggingFaceDecoder, PreallocatedLayer


def decoder_for(model: PreTrainedModel) -> Decoder:
    """The fastest decoder that a model has."""
    if type(model) is Olmo2ForCausalLM and positions_are_absolute(model):
        return Olmo2Decoder(model)
    return HuggingFaceDecoder(model)


def positions_are_absolute(model: Olmo2ForCausalLM) -> bool:
    """Whether a token's rotation follows from its position alone, not from its row's length."""
    return model.config.rope_parameters["rope_type"] not in ("dynamic", "longrope")


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (Su et al., 2021, equation 34): states (rows, heads, head_dim)."""
    first, second = states.chunk(2, dim=-1)
    return (states * cos + torch.cat((-second, first), dim=-1) * sin).to(states.dtype)


def attend_to_template_and_row(
    query: Tensor,
    template: tuple[Tensor, Tensor],
    row: tuple[Tensor, Tensor],
    row_bias: Tensor | None,
) -> Tensor:
    """Attention of one new token per row over the tokens all rows share and the row's own.

    One softmax over both, as if each row had the whole; but the template's scores are one matrix
    product for all rows, which reads its keys once and not once a row.

    Args:
        query: (rows, heads, head_dim), already scaled.
        template: Keys and values, each (kv_heads, template_length, head_dim).
        row: Keys and values, each (rows, kv_heads, length, head_dim), the new token included.
        row_bias: (rows, 1, 1, prompt_length) with 0 on tokens and -inf on the padding before them,
            or None where no row has any.

    Returns:
        (rows, heads * head_dim).
    """
    (template_keys, template_values), (keys, values) = template, row
    template_length, num_rows = template_keys.shape[1], len(query)
    # Heads that share keys (grouped-query attention) stand side by side as g.
    query = rearrange(query, "r (kv g) d -> r kv g d", kv=keys.shape[1])
    scores = query @ keys.mT
    if row_bias is not None:
        scores[..., : row_bias.shape[-1]] += row_bias
    template_scores = rearrange(query, "r kv g d -> kv (r g) d") @ template_keys.mT
    template_scores = rearrange(template_scores, "kv (r g) s -> r kv g s", r=num_rows)
    weights = torch.cat((template_scores, scores), dim=-1).softmax(dim=-1)
    template_weights, weights = weights.tensor_split((template_length,), dim=-1)
    template_part = rearrange(template_weights, "r kv g s -> kv (r g) s") @ template_values
    template_part = rearrange(template_part, "kv (r g) d -> r kv g d", r=num_rows)
    return rearrange(template_part + weights @ values, "r kv g d -> r (kv g d)")


class Olmo2Decoder(HuggingFaceDecoder):
    """Prompts go through the Hugging Face forward pass, every later token through `step`."""

    model: Olmo2ForCausalLM

    def prefill(
        self,
        prompts: list[list[int]],
        template_length: int,
        prompt_of_row: Tensor,
        max_new_tokens: int,
    ) -> Tensor:
        self.template_length = template_length
        return super().prefill(prompts, template_length, prompt_of_row, max_new_tokens)

    def _open_rows(self, prompt_of_row: Tensor, max_new_tokens: int) -> None:
        split = self.template_length
        layers, self.cache = self.cache.layers, None
        self.templates = [
            (layer.keys[0, :, :split], layer.values[0, :, :split]) for layer in layers
        ]
        self.rows = [
            PreallocatedLayer(
                layer.keys[prompt_of_row, :, split:],
                layer.values[prompt_of_row, :, split:],
                max_new_tokens,
            )
            for layer in layers
        ]
        self.positions = self.mask.sum(dim=1)[prompt_of_row]
        padding = self.mask[prompt_of_row, None, None, split:] == 0
        dtype = self.model.dtype
        self.row_bias = (
            padding.to(dtype).masked_fill(padding, -torch.inf) if padding.any() else None
        )
        length = int(self.positions.max()) + max_new_tokens
        every_position = torch.arange(length, device=self.mask.device)[None]
        cos, sin = self.model.model.rotary_emb(self.model.lm_head.weight, every_position)
        self.cos, self.sin = cos[0], sin[0]  # (length, head_dim)

    def step(self, token_ids: Tensor) -> Tensor:
        body = self.model.model
        hidden = body.embed_tokens(token_ids)  # (rows, hidden)
        cos, sin = self.cos[self.positions, None], self.sin[self.positions, None]
        for layer, template, row in zip(body.layers, self.templates, self.rows, strict=True):
            hidden = self._layer(layer, hidden, cos, sin, template, row)
        self.positions = self.positions + 1
        return self.model.lm_head(body.norm(hidden))

    def keep(self, rows: Tensor) -> None:
        for row in self.rows:
            row.batch_select_indices(rows)
        self.positions = self.positions[rows]
        self.row_bias = None if self.row_bias is None else self.row_bias[rows]

    def _layer(
        self,
        layer: Olmo2DecoderLayer,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        template: tuple[Tensor, Tensor],
        row: PreallocatedLayer,
    ) -> Tensor:
        """OLMo-2's block: norms on queries and keys, and after each half instead of before it."""
        attention = layer.self_attn
        heads = "r (h d) -> r h d"
        dim = attention.head_dim
        query = rearrange(attention.q_norm(attention.q_proj(hidden)), heads, d=dim)
        key = rearrange(attention.k_norm(attention.k_proj(hidden)), heads, d=dim)
        value = rearrange(attention.v_proj(hidden), heads, d=dim)
        query, key = rotate(query, cos, sin) * attention.scaling, rotate(key, cos, sin)
        row_states = row.update(key[:, :, None], value[:, :, None])
        attended = attend_to_template_and_row(query, template, row_states, self.row_bias)
        hidden = hidden + layer.post_attention_layernorm(attention.o_proj(attended))
        return hidden + layer.post_feedforward_layernorm(layer.mlp(hidden))
