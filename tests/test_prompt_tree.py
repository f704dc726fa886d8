"""The tree of a batch: each token once, every row still there."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gsmrl_helpers.prompt_tree import MAX_ROW_PADDING, blocks_of_like_length, build_prompt_tree
from tests.test_response_scoring import BATCHES, make_batch


@pytest.mark.parametrize("name", [name for name in BATCHES if "without" not in name])
def test_every_row_can_be_read_off_the_tree(name: str) -> None:
    ids, _labels, mask = BATCHES[name].values()
    tree = build_prompt_tree(ids, mask)
    prompt_lengths = mask.int().argmax(dim=1) + 1
    stream = list(zip(tree.token_ids.tolist(), tree.positions.tolist(), strict=True))
    row, column = mask.nonzero(as_tuple=True)
    for place, r, t in zip(tree.predictors.tolist(), row.tolist(), column.tolist(), strict=True):
        assert stream[place] == (ids[r, t].item(), t)
    template = stream[: tree.template_length]
    assert template == [(ids[0, t].item(), t) for t in range(tree.template_length)]
    rows_found = []
    for block in tree.responses:
        for places, is_token, prompt in zip(
            block.places, block.is_token, block.prompt_of_row, strict=True
        ):
            suffix = tree.suffixes.places[prompt][tree.suffixes.is_token[prompt]]
            path = [*range(tree.template_length), *suffix.tolist(), *places[is_token].tolist()]
            rows_found.append([stream[place][0] for place in path])
            assert [stream[place][1] for place in path] == list(range(len(path)))
    rows = [ids[r, : prompt_lengths[r] + mask[r].sum() - 1].tolist() for r in range(len(ids))]
    # A response of one token adds nothing to its prompt.
    assert sorted(rows_found) == sorted(r for r, m in zip(rows, mask, strict=True) if m.sum() > 1)


def test_the_stream_holds_no_token_twice_and_no_padding() -> None:
    tree = build_prompt_tree(*(BATCHES["groups"][n] for n in ("input_ids", "response_mask")))
    assert tree.template_length == 4
    assert len(tree.token_ids) == 4 + (1 + 3 + 2) + (0 + 8 + 3 + 4 + 5 + 0 + 1 + 11)
    blocks = [tree.suffixes, *tree.responses]
    places = torch.cat([block.places[block.is_token] for block in blocks])
    assert places.tolist() == list(range(4, len(tree.token_ids)))


def test_a_lone_prompt_keeps_a_token_to_predict_from() -> None:
    batch = make_batch([[3, 4, 5]] * 2, [1, 1])
    tree = build_prompt_tree(batch["input_ids"], batch["response_mask"])
    assert tree.template_length == 2 and tree.token_ids.tolist() == [3, 4, 5]
    assert tree.predictors.tolist() == [2, 2] and tree.responses == ()


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40))
def test_blocks_hold_every_row_once_and_little_padding(lengths: list[int]) -> None:
    blocks = blocks_of_like_length(torch.tensor(lengths))
    rows = [row for block in blocks for row in block.tolist()]
    assert sorted(rows) == [row for row, length in enumerate(lengths) if length > 0]
    for block in blocks:
        widths = [lengths[row] for row in block.tolist()]
        assert widths == sorted(widths, reverse=True)
        assert widths[-1] >= (1 - MAX_ROW_PADDING) * widths[0]


def test_a_response_that_is_empty_or_has_a_hole_is_no_branch() -> None:
    ids = torch.arange(12).view(2, 6)
    mask = torch.tensor([[0, 0, 1, 1, 1, 0], [0, 1, 0, 1, 1, 1]]).bool()
    with pytest.raises(ValueError, match="row 1 is empty or has a hole"):
        build_prompt_tree(ids, mask)
    mask[1] = False
    with pytest.raises(ValueError, match="row 1 is empty"):
        build_prompt_tree(ids, mask)
