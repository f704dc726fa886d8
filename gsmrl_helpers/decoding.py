"""The model's side of sampling: prompts once, then a token for every row at a time."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer


class Decoder(Protocol):
    """Next-token logits for a batch of rows; each row continues one of the prompts."""

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        template_length: int,
        prompt_of_row: Tensor,
        max_new_tokens: int,
    ) -> Tensor:
        """Process the prompts and open one row for each entry of `prompt_of_row`.

        Args:
            prompts: P prompts as token ids.
            template_length: Number of leading tokens that all prompts have in common, smaller than
                the shortest prompt; they are processed once.
            prompt_of_row: (R,) int64, which prompt each row continues.
            max_new_tokens: How many tokens the rows may grow by.

        Returns:
            (R, vocab) logits of each row's first token.
        """

    def step(self, token_ids: Tensor) -> Tensor:
        """Append token_ids (R,) int64 to the rows; returns (R, vocab) logits of the next token."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, and in this order: an int64 index without repeats."""


def common_prefix_length(sequences: Sequence[Sequence[int]]) -> int:
    """How many leading tokens all sequences have in common."""
    # What the first and the last in dictionary order share, all between them share too.
    first, last = min(sequences), max(sequences)
    pairs = zip(first, last, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(last)))


def left_pad(sequences: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Right-align token ids of different lengths.

    Returns:
        (B, L) int64 ids with 0 as padding, and (B, L) int64 mask, 1 on tokens.
    """
    length = max(map(len, sequences))
    ids = [[0] * (length - len(sequence)) + list(sequence) for sequence in sequences]
    mask = [[0] * (length - len(sequence)) + [1] * len(sequence) for sequence in sequences]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


class PreallocatedLayer(DynamicLayer):
    """One layer's keys and values, in memory laid out in advance: a new token copies no old one.

    Args:
        keys: (rows, kv_heads, length, head_dim) of the prompt.
        values: The same shape.
        max_new_tokens: How much longer the rows may grow.
    """

    def __init__(self, keys: Tensor, values: Tensor, max_new_tokens: int) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        rows, kv_heads, length, head_dim = keys.shape
        shape = (2, rows, kv_heads, length + max_new_tokens, head_dim)
        self.memory = keys.new_empty(shape)
        self.memory[0, :, :, :length], self.memory[1, :, :, :length] = keys, values
        self._show(length)

    def _show(self, length: int) -> None:
        self.keys, self.values = self.memory[:, :, :, :length]

    def update(self, key_states: Tensor, value_states: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        """Append (rows, kv_heads, new, head_dim); returns views of all keys and values."""
        start, end = self.keys.shape[2], self.keys.shape[2] + key_states.shape[2]
        self._show(end)
        self.keys[:, :, start:], self.values[:, :, start:] = key_states, value_states
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Go on with these rows in this order; only those that change places are copied."""
        moved = (indices != torch.arange(len(indices), device=self.device)).nonzero().flatten()
        length = self.keys.shape[2]
        self.memory[:, moved, :, :length] = self.memory[:, indices[moved], :, :length]
        self.memory = self.memory[:, : len(indices)]
        self._show(length)


class HuggingFaceDecoder:
    """Decodes with the forward pass and the cache of any Hugging Face causal language model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        base = model.get_base_model() if hasattr(model, "get_base_model") else model  # LoRA
        accepted = inspect.signature(base.forward).parameters
        self._takes_position_ids = "position_ids" in accepted
        self._last_logits = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        # ALiBi models read positions from the attention mask; others could not tell padding.
        placed = self._takes_position_ids or model.config.model_type in ("bloom", "mpt")
        if "past_key_values" not in accepted or not placed:
            raise ValueError(
                f"{type(model).__name__} cannot be sampled from here: a causal language model "
                "must take past_key_values and position_ids, as all those with a key-value cache do"
            )

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        template_length: int,
        prompt_of_row: Tensor,
        max_new_tokens: int,
    ) -> Tensor:
        device = prompt_of_row.device
        self.cache = DynamicCache(config=self.model.config)
        # Sliding windows and recurrent states have memory of their own kind; and a window counts
        # the padding that follows a template.
        self._full_attention = all(type(layer) is DynamicLayer for layer in self.cache.layers)
        template_length = template_length if self._full_attention else 0
        self.mask = torch.ones(1, template_length, dtype=torch.int64, device=device)
        if template_length:
            self._forward(torch.tensor([prompts[0][:template_length]], device=device))
            self.cache.batch_repeat_interleave(len(prompts))
        ids, mask = left_pad([prompt[template_length:] for prompt in prompts], device)
        self.mask = torch.cat([self.mask.expand(len(prompts), -1), mask], dim=1)
        logits = self._forward(ids)
        self._open_rows(prompt_of_row, max_new_tokens)
        return logits[prompt_of_row]

    def _open_rows(self, prompt_of_row: Tensor, max_new_tokens: int) -> None:
        """From the prompts' keys and values to the rows'."""
        self.mask = self.mask[prompt_of_row]
        if self._full_attention:
            self.cache = Cache(
                layers=[
                    PreallocatedLayer(
                        layer.keys[prompt_of_row], layer.values[prompt_of_row], max_new_tokens
                    )
                    for layer in self.cache.layers
                ]
            )
        else:
            self.cache.batch_select_indices(prompt_of_row)

    def step(self, token_ids: Tensor) -> Tensor:
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], dim=1)
        return self._forward(token_ids[:, None])

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask = self.mask[rows]

    def _forward(self, ids: Tensor) -> Tensor:
        """ids (B, L) -> logits (B, vocab) at the last position."""
        # Padding is not a position: a token's position is the number of real tokens before it.
        positions = (self.mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = self.model(
            input_ids=ids,
            attention_mask=self.mask,
            past_key_values=self.cache,
            use_cache=True,
            **({"position_ids": positions} if self._takes_position_ids else {}),
            **self._last_logits,
        )
        return output.logits[:, -1]
