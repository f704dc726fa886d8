"""Whole documents in one row, against transformers' flattening collator and each document alone."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import DataCollatorWithFlattening

from gsmrl_helpers.packing import (
    IGNORED,
    Encoded,
    block_causal_mask,
    encode_example,
    fill_rows,
    flatten,
    packed_logits,
)
from tests.tiny_policy import make_policy, make_tokenizer

EOS = 1


def encoded(seed: int, n: int = 5) -> list[Encoded]:
    rng, tokenizer = random.Random(seed), make_tokenizer()

    def text() -> str:
        return "".join(rng.choices("abcdefghij0123456789 =+", k=rng.randint(1, 9)))

    return [encode_example(tokenizer, text(), text()) for _ in range(n)]


def test_prompt_and_response_are_encoded_apart_and_the_end_is_the_response_s() -> None:
    ids, is_response = encode_example(make_tokenizer(), "a", "bc")
    tokenizer = make_tokenizer()
    assert ids == [*(tokenizer.convert_tokens_to_ids(c) for c in "abc"), EOS]
    assert is_response == [False, True, True, True]
    with pytest.raises(ValueError, match="no eos_token"):
        encode_example(make_tokenizer(pad_token="<pad>"), "a", "b")


@pytest.mark.parametrize("seed", range(5))
def test_a_row_is_that_of_the_flattening_collator_with_shifted_labels(seed: int) -> None:
    documents = encoded(seed)
    labels = [
        [i if r else IGNORED for i, r in zip(d.ids, d.is_response, strict=True)] for d in documents
    ]
    for train_on_prompt in (False, True):
        features = [
            {"input_ids": d.ids, "labels": d.ids if train_on_prompt else masked}
            for d, masked in zip(documents, labels, strict=True)
        ]
        theirs = DataCollatorWithFlattening()(features, return_tensors="pt")
        ours = flatten(documents, train_on_prompt)
        for name in ("input_ids", "position_ids"):
            assert torch.equal(ours[name], theirs[name]) and ours[name].dtype == torch.int64
        assert torch.equal(ours["labels"][:, :-1], theirs["labels"][:, 1:])
        assert ours["labels"][0, -1] == IGNORED


def test_the_labels_of_a_row_by_hand() -> None:
    two = [Encoded([5, 6, 7, 1], [False, False, True, True]), Encoded([8, 9], [False, True])]
    row = flatten(two)
    assert row["input_ids"].tolist() == [[5, 6, 7, 1, 8, 9]]
    assert row["labels"].tolist() == [[IGNORED, 7, 1, IGNORED, 9, IGNORED]]
    assert row["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1]]
    assert flatten(two, train_on_prompt=True)["labels"].tolist() == [[6, 7, 1, IGNORED, 9, IGNORED]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # sdpa and eager attention
@pytest.mark.parametrize("seed", range(3))
def test_each_document_s_logits_are_those_of_it_alone(seed: int, dtype: torch.dtype) -> None:
    model, documents = make_policy(seed, dtype), encoded(seed)
    with torch.no_grad():
        together = packed_logits(model, flatten(documents))
        alone = [model(torch.tensor([d.ids])).logits for d in documents]
    atol = 1e-10 if dtype is torch.float64 else 1e-4
    assert torch.allclose(together, torch.cat(alone, dim=1), rtol=0, atol=atol)


def test_transformers_own_mask_of_restarting_positions_is_ours_without_a_cache() -> None:
    model, row = make_policy(0, torch.float64), flatten(encoded(0))
    ours = packed_logits(model, row)
    inputs = {name: row[name] for name in ("input_ids", "position_ids")}
    assert torch.allclose(model(**inputs, use_cache=False).logits, ours, rtol=0, atol=1e-10)
    assert not torch.allclose(model(**inputs, use_cache=True).logits, ours, rtol=0, atol=1e-3)


def test_a_document_has_no_gradient_from_another_s_loss() -> None:
    model, documents = make_policy(1, torch.float64), encoded(1, n=3)
    row = flatten(documents)
    embedded = model.get_input_embeddings()(row["input_ids"]).detach().requires_grad_()
    logits = model(
        inputs_embeds=embedded,
        position_ids=row["position_ids"],
        attention_mask=block_causal_mask(row["position_ids"]),
        use_cache=False,
    ).logits
    first = len(documents[0].ids)
    second = slice(first, first + len(documents[1].ids))
    logits[0, second].square().sum().backward()
    moved = embedded.grad[0].abs().sum(dim=-1) > 0
    assert moved[second].all() and moved.sum() == len(documents[1].ids)


def test_the_mask_by_hand() -> None:
    mask = block_causal_mask(torch.tensor([[0, 1, 0, 1, 2], [0, 1, 2, 3, 0]]))
    assert mask.shape == (2, 1, 5, 5) and mask.dtype == torch.bool
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]
    assert mask[1, 0, 3].tolist() == [True] * 4 + [False] and mask[1, 0, 4].sum() == 1


def test_rows_take_the_next_document_as_long_as_it_fits() -> None:
    assert list(fill_rows([3, 4, 3, 9, 1, 1], 8)) == [[0, 1], [2], [3], [4, 5]]
    assert list(fill_rows([8], 8)) == [[0]] and list(fill_rows([], 8)) == []
    with pytest.raises(ValueError, match="max_tokens=0"):
        list(fill_rows([1], 0))


@pytest.mark.parametrize("seed", range(20))
def test_every_document_is_in_one_row_and_no_row_is_too_long(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.randint(1, 30) for _ in range(rng.randint(1, 40))]
    rows = list(fill_rows(lengths, 20))
    assert [index for row in rows for index in row] == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= 20 or len(row) == 1 for row in rows)
