"""Rows that share prompts, as a tree: each token that rows have in common is there once.

A batch of B = U·G rows holds each of U prompts G times, and all prompts begin alike, with the
instructions: the template. In the pocket world four of five tokens of such a batch are repetitions.
The tree has the template once, what each prompt adds to it (its suffix) once a prompt, and the
responses, all in one stream without padding. Only attention wants rows side by side; it finds them
through blocks, in each of which responses of like length stand together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gsmrl_helpers.decoding import common_prefix_length

MAX_ROW_PADDING = 0.2  # of a block's width; more rows a block mean fewer blocks, more padding


@dataclass(frozen=True)
class Block:
    """Stretches of the stream, side by side.

    Attributes:
        places: (rows, width) int64, where in the stream each token stands; padding, on the right,
            points at any token.
        is_token: (rows, width) bool, False on padding.
        prompt_of_row: (rows,) int64, the prompt that each row belongs to.
    """

    places: Tensor
    is_token: Tensor
    prompt_of_row: Tensor


@dataclass(frozen=True)
class PromptTree:
    """The tokens of a batch in one stream of N: template, suffixes, responses.

    Attributes:
        token_ids: (N,) int64.
        positions: (N,) int64, of each token in its row.
        template_length: Tokens of the template, the first of the stream.
        suffixes: The U suffixes, in the order of the prompts.
        responses: The responses, without their last tokens, which predict nothing.
        predictors: (M,) int64, for each response token, row by row, the place in the stream of the
            token that it is predicted from.
    """

    token_ids: Tensor
    positions: Tensor
    template_length: int
    suffixes: Block
    responses: tuple[Block, ...]
    predictors: Tensor


def are_one_stretch(mask: Tensor) -> Tensor:
    """(B,) bool: whether what a (B, T) mask marks in a row is one stretch, of one token or more."""
    starts = torch.cat([mask[:, :1], mask[:, 1:] & ~mask[:, :-1]], dim=1)
    return starts.sum(dim=1) == 1


def build_prompt_tree(input_ids: Tensor, response_mask: Tensor) -> PromptTree:
    """The tree of a right-padded batch, as `tokenize_prompt_and_output` returns it.

    Args:
        input_ids: (B, T) int64.
        response_mask: (B, T) bool, True where a response token is predicted, which is in each row
            one stretch of at least one position.

    Raises:
        ValueError: a row's response is empty, or has a hole.
    """
    if not (one := are_one_stretch(response_mask)).all():
        raise ValueError(
            f"response_mask of row {int((~one).nonzero()[0])} is empty or has a hole: in a tree "
            "each response is one stretch; score such rows whole, as score_responses does"
        )
    device, ids, mask = input_ids.device, input_ids.cpu(), response_mask.cpu()
    prompt_lengths = mask.int().argmax(dim=1) + 1
    lengths = mask.sum(dim=1) - 1  # of the responses, without their last tokens
    prompts, prompt_of_row = number_prompts(ids, prompt_lengths)
    template_length = min(common_prefix_length(prompts), min(map(len, prompts)) - 1)

    stream = _Stream(ids)
    stream.append(torch.tensor([0]), torch.tensor([0]), torch.tensor([template_length]))
    row_of_prompt = torch.tensor([prompt_of_row.tolist().index(u) for u in range(len(prompts))])
    starts = torch.full_like(row_of_prompt, template_length)
    suffix_lengths = prompt_lengths[row_of_prompt] - template_length
    places, is_token = stream.append(row_of_prompt, starts, suffix_lengths)
    suffixes = Block(places, is_token, torch.arange(len(prompts)))
    last_of_prompt = places.gather(1, suffix_lengths[:, None] - 1)[:, 0]

    responses, first_place = [], torch.zeros_like(lengths)
    for rows in blocks_of_like_length(lengths):
        places, is_token = stream.append(rows, prompt_lengths[rows], lengths[rows])
        responses.append(Block(places, is_token, prompt_of_row[rows]))
        first_place[rows] = places[:, 0]
    nth = mask.long().cumsum(dim=1) - 1  # (B, T), a token's number in its response
    own = first_place[:, None] + nth - 1
    predictors = torch.where(nth == 0, last_of_prompt[prompt_of_row, None], own)[mask]
    return PromptTree(
        torch.cat(stream.token_ids).to(device),
        torch.cat(stream.positions).to(device),
        template_length,
        _to(suffixes, device),
        tuple(_to(block, device) for block in responses),
        predictors.to(device),
    )


class _Stream:
    """Token ids and positions, appended a block at a time."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids  # (B, T)
        self.length = 0
        self.token_ids: list[Tensor] = []
        self.positions: list[Tensor] = []

    def append(self, rows: Tensor, starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Append `lengths` tokens of each row from `starts` on; their places and which exist."""
        is_token = torch.arange(int(lengths.max())) < lengths[:, None]
        row, column = is_token.nonzero(as_tuple=True)
        positions = starts[row] + column
        self.token_ids.append(self.ids[rows[row], positions])
        self.positions.append(positions)
        # Padding counts no further, so it points at the token before it.
        places = self.length + is_token.flatten().cumsum(dim=0).view_as(is_token) - 1
        self.length += len(row)
        return places, is_token


def _to(block: Block, device: torch.device) -> Block:
    return Block(*(tensor.to(device) for tensor in vars(block).values()))


def number_prompts(ids: Tensor, prompt_lengths: Tensor) -> tuple[list[tuple[int, ...]], Tensor]:
    """The different prompts in order of appearance, and (B,) which of them each row has."""
    number: dict[tuple[int, ...], int] = {}
    of_row = [
        number.setdefault(tuple(row[:length]), len(number))
        for row, length in zip(ids.tolist(), prompt_lengths.tolist(), strict=True)
    ]
    return list(number), torch.tensor(of_row)


def blocks_of_like_length(lengths: Tensor) -> list[Tensor]:
    """Rows sorted by length, longest first, cut where a row would be padded too much.

    Args:
        lengths: (B,) int64; rows of length 0 are in no block.

    Returns:
        Indices of rows, (rows,) int64 each.
    """
    blocks: list[list[int]] = []
    width = 0
    for row in lengths.argsort(descending=True, stable=True).tolist():
        length = int(lengths[row])
        if length == 0:
            break
        if not blocks or length < (1 - MAX_ROW_PADDING) * width:
            blocks.append([])
            width = length
        blocks[-1].append(row)
    return [torch.tensor(rows) for rows in blocks]
