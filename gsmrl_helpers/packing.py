"""Whole documents side by side in one row, each blind to the others: nothing is cut or padded.

The row has the form of transformers' `DataCollatorWithFlattening`, but for the labels: here they
are shifted, as everywhere in the course, and there the model shifts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gsmrl_helpers.sft_data import end_token_id
from gsmrl_helpers.tokenization import encode

IGNORED = -100  # the label of a position whose prediction does not count, as in torch


class Encoded(NamedTuple):
    """A document's token ids, and which of them are the response's (its end token included)."""

    ids: list[int]
    is_response: list[bool]


def encode_example(tokenizer: PreTrainedTokenizerBase, prompt: str, response: str) -> Encoded:
    """Prompt and response, encoded apart as in sampling, then the end token.

    Args:
        tokenizer: needs an end-of-sequence token; it adds no special token of its own here.
        prompt: the whole text before the response, template included.
        response: what is to be imitated.

    Raises:
        ValueError: the tokenizer has no end token.
    """
    prompt_ids = encode(tokenizer, prompt)
    response_ids = [*encode(tokenizer, response), end_token_id(tokenizer)]
    is_response = [False] * len(prompt_ids) + [True] * len(response_ids)
    return Encoded(prompt_ids + response_ids, is_response)


def fill_rows(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices of the documents of each row: the next document, as long as it fits.

    Args:
        lengths: tokens of each document.
        max_tokens: most tokens of a row. A longer document gets a row of its own.

    Raises:
        ValueError: `max_tokens` is below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens={max_tokens}: a row needs at least 1 token")
    row: list[int] = []
    used = 0
    for index, length in enumerate(lengths):
        if row and used + length > max_tokens:
            yield row
            row, used = [], 0
        row.append(index)
        used += length
    if row:
        yield row


def flatten(documents: Sequence[Encoded], train_on_prompt: bool = False) -> dict[str, Tensor]:
    """Documents as one row of T tokens, whose positions restart at each document.

    Args:
        documents: at least one.
        train_on_prompt: let the tokens of prompts count as well.

    Returns:
        Three (1, T) int64 tensors: `input_ids`; `labels`, the next token of the same document where
        it counts, else `IGNORED`, as at the last token of each; `position_ids`.
    """
    ids, labels, positions = [], [], []
    for document in documents:
        counts = [train_on_prompt or response for response in document.is_response]
        targets = [i if c else IGNORED for i, c in zip(document.ids, counts, strict=True)]
        ids += document.ids
        labels += [*targets[1:], IGNORED]
        positions += range(len(document.ids))
    row = {"input_ids": ids, "labels": labels, "position_ids": positions}
    return {name: torch.tensor([values]) for name, values in row.items()}


def block_causal_mask(position_ids: Tensor) -> Tensor:
    """Who may look at whom: tokens of the same document that do not come later.

    Args:
        position_ids: (B, T) int64; a 0 starts a document.

    Returns:
        (B, 1, T, T) bool, True where query t may attend to key s, for all heads.
    """
    document = (position_ids == 0).cumsum(dim=1)
    same = document[:, :, None] == document[:, None, :]
    return same.tril()[:, None]


def packed_logits(model: PreTrainedModel, row: dict[str, Tensor]) -> Tensor:
    """(1, T, V) logits of a row of `flatten`, each document's as if it were alone.

    The mask is given, not left to the model: transformers derives one from restarting positions,
    but only without a cache, and then without a word. FlashAttention takes no such mask; it always
    goes by the positions.
    """
    mask = None
    if model.config._attn_implementation != "flash_attention_2":
        may_look = block_causal_mask(row["position_ids"])
        # added to the scores: eager attention would add a bool mask's 0 and 1
        mask = may_look.logical_not().to(model.dtype) * torch.finfo(model.dtype).min
    return model(
        input_ids=row["input_ids"],
        position_ids=row["position_ids"],
        attention_mask=mask,
        use_cache=False,
    ).logits
