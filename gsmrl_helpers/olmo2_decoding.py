"""One decoding step of OLMo-2 for many rows that share the beginning of their prompts.

What differs from the Hugging Face forward pass: the template's keys and values exist once for all
rows, and a step does nothing but the step (no masks, caches or outputs to build anew for a token).
"""

from __future__ import annotations

from functools import partial

import torch
from einops import rearrange
from torch import Tensor
from transformers import Olmo2ForCausalLM, PreTrainedModel

from gsmrl_helpers.decoding import Decoder, HuggingFaceDecoder
from gsmrl_helpers.olmo2_block import olmo2_block
from gsmrl_helpers.rms_norm import rms_norm


def decoder_for(model: PreTrainedModel) -> Decoder:
    """The fastest decoder that a model has."""
    if type(model) is Olmo2ForCausalLM and positions_are_absolute(model):
        return Olmo2Decoder(model)
    return HuggingFaceDecoder(model)


def positions_are_absolute(model: Olmo2ForCausalLM) -> bool:
    """Whether a token's rotation follows from its position alone, not from its row's length."""
    return model.config.rope_parameters["rope_type"] not in ("dynamic", "longrope")


class SharedStates:
    """Keys and values of P texts, each one shared by the rows that continue it.

    The rows of a text are put side by side, so that a matrix product reads each text's keys once
    and not once a row. For that, rows are copied to slots, a rectangle of P texts by the most rows
    that continue one of them, S; slots that no row needs repeat row 0.

    Args:
        keys: (≥ P, kv_heads, length, head_dim) of every layer, as a cache holds them.
        values: The same.
        positions: Which of their positions the texts are.
        text_of_row: (R,) int64, which text each row continues.

    Attributes:
        keys: (kv_heads, P, head_dim, length) of every layer: transposed, since a small matrix
            product is faster where its second factor is not to be transposed.
        values: (kv_heads, P, length, head_dim) of every layer.
    """

    def __init__(
        self, keys: list[Tensor], values: list[Tensor], positions: slice, text_of_row: Tensor
    ) -> None:
        self.num_texts = int(text_of_row.max()) + 1
        texts = (slice(self.num_texts), slice(None), positions)
        self.keys = [rearrange(key[texts], "p kv t d -> kv p d t").contiguous() for key in keys]
        self.values = [rearrange(v[texts], "p kv t d -> kv p t d").contiguous() for v in values]
        self.place_rows(text_of_row)

    def place_rows(self, text_of_row: Tensor) -> None:
        """Give every row a slot; called anew when rows leave or change their order."""
        self.text_of_row = text_of_row
        every_row = torch.arange(len(text_of_row), device=text_of_row.device)
        rows_of_text = torch.bincount(text_of_row, minlength=self.num_texts)
        self.num_slots = int(rows_of_text.max())
        by_text = text_of_row.argsort(stable=True)
        first_of_text = rows_of_text.cumsum(0) - rows_of_text
        self.slot_of_row = text_of_row * self.num_slots
        self.slot_of_row[by_text] += every_row - first_of_text[text_of_row[by_text]]
        self.row_of_slot = every_row.new_zeros(self.num_texts * self.num_slots)
        self.row_of_slot[self.slot_of_row] = every_row
        # True while every text has all its rows, in order: then nothing needs to be copied.
        self.rows_are_slots = torch.equal(self.row_of_slot, every_row)

    def matmul(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """Each row times its text's matrix: (kv, R, g, a), (kv, P, a, b) -> (kv, R, g, b)."""
        slots = rows if self.rows_are_slots else rows.index_select(1, self.row_of_slot)
        slots = slots.unflatten(1, (self.num_texts, self.num_slots))  # (kv, P, S, g, a)
        products = slots.flatten(2, 3) @ matrices  # (kv, P, S * g, b)
        products = products.unflatten(2, (self.num_slots, -1)).flatten(1, 2)
        return products if self.rows_are_slots else products.index_select(1, self.slot_of_row)


class OwnStates:
    """Keys and values of the tokens that the rows have sampled, of all layers in one memory.

    Args:
        keys: (P, kv_heads, length, head_dim) of every layer, to learn sizes from.
        num_rows: R.
        max_new_tokens: How many tokens the rows may grow by.
    """

    # With fewer, a matrix product is small enough for PyTorch to take its plain loop, which is
    # three times slower: the places behind the newest token take part and are masked.
    fewest = 16

    def __init__(self, keys: list[Tensor], num_rows: int, max_new_tokens: int) -> None:
        _, kv_heads, _, head_dim = keys[0].shape
        places = max(max_new_tokens, self.fewest)
        self.memory = keys[0].new_empty(len(keys), 2, kv_heads, num_rows, places, head_dim)
        self.memory[:, :, :, :, : self.fewest] = 0.0  # masked, and NaN would show through
        self.length = 0

    def open_place(self) -> None:
        """Turn to the next token: `update` writes it for one layer after the other."""
        self.length += 1
        visible = max(self.length, self.fewest)
        self.bias = None
        if self.length < visible:
            self.bias = self.memory.new_zeros(visible)
            self.bias[self.length :] = -torch.inf

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write (kv_heads, R, head_dim) to the open place; returns views of keys and values."""
        memory = self.memory[layer]
        memory[0, :, :, self.length - 1], memory[1, :, :, self.length - 1] = key, value
        keys, values = memory[:, :, :, : max(self.length, self.fewest)]
        return keys, values

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows in this order; only those that change places are copied."""
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero().flatten()
        filled = self.memory[:, :, :, :, : self.length]
        filled[:, :, :, moved] = filled[:, :, :, rows[moved]]
        self.memory = self.memory[:, :, :, : len(rows)]


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
        keys = [layer.keys for layer in self.cache.layers]
        values = [layer.values for layer in self.cache.layers]
        self.cache = None
        parts = [(slice(split, None), prompt_of_row)]
        if split:
            parts.insert(0, (slice(split), torch.zeros_like(prompt_of_row)))
        self.shared = [SharedStates(keys, values, *part) for part in parts]
        self.own = OwnStates(keys, len(prompt_of_row), max_new_tokens)
        self.positions = self.mask.sum(dim=1)[prompt_of_row]
        padding = self.mask[prompt_of_row, None] == 0  # (rows, 1, length)
        self.bias = None
        if padding.any():
            self.bias = torch.zeros_like(padding, dtype=self.model.dtype)
            self.bias.masked_fill_(padding, -torch.inf)
        length = int(self.positions.max()) + max_new_tokens
        every_position = torch.arange(length, device=self.mask.device)[None]
        cos, sin = self.model.model.rotary_emb(self.model.lm_head.weight, every_position)
        self.cos, self.sin = cos[0], sin[0]  # (length, head_dim)

    def step(self, token_ids: Tensor) -> Tensor:
        body = self.model.model
        self.own.open_place()
        hidden = body.embed_tokens(token_ids)  # (rows, hidden)
        angles = self.cos[self.positions, None], self.sin[self.positions, None]
        for index, layer in enumerate(body.layers):
            attend = partial(self._attend, index, layer.self_attn.scaling)
            hidden = olmo2_block(layer, hidden, angles, angles, attend)
        self.positions = self.positions + 1
        return self.model.lm_head(rms_norm(body.norm, hidden))

    def keep(self, rows: Tensor) -> None:
        self.own.keep(rows)
        for part in self.shared:
            part.place_rows(part.text_of_row[rows])
        self.positions = self.positions[rows]
        self.bias = None if self.bias is None else self.bias[rows]

    def _attend(
        self, index: int, scaling: float, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Attention of each row's new token over what it shares with others and its own tokens.

        One softmax over all of it, as if each row had the whole; for the rest see `olmo2_block`.
        """
        own_keys, own_values = self.own.update(index, key.transpose(0, 1), value.transpose(0, 1))
        # Heads that share keys (grouped-query attention) stand side by side as g.
        query = (query * scaling).unflatten(1, (len(own_keys), -1))  # (r, kv, g, d)
        query = query.transpose(0, 1).contiguous()
        scores = [part.matmul(query, part.keys[index]) for part in self.shared]
        scores.append(query @ own_keys.mT)
        if self.own.bias is not None:
            scores[-1] += self.own.bias
        lengths = [part.shape[-1] for part in scores]
        scores = torch.cat(scores, dim=-1)
        if self.bias is not None:
            scores[..., : self.bias.shape[-1]] += self.bias
        *weights, own_weights = scores.softmax(dim=-1).split(lengths, dim=-1)
        attended = own_weights @ own_values
        for part, part_weights in zip(self.shared, weights, strict=True):
            attended += part.matmul(part_weights, part.values[index])
        return attended.transpose(0, 1).flatten(1, 2)  # (r, heads, d)
