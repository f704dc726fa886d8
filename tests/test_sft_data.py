"""Instruction data and the assignment's packing: one stream, chunks of L, labels one token on."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from pathlib import Path

import pytest
import torch

from gsmrl_helpers.sft_data import (
    ALPACA_TEMPLATE,
    Example,
    PackedDataset,
    encode_text,
    fill_template,
    get_packed_sft_dataset,
    iterate_batches,
    load_examples,
)
from tests.tiny_policy import make_tokenizer

BOS, EOS = 0, 1
PLAIN = "{prompt}="
ROWS = [{"prompt": "ab", "response": "cd"}, {"prompt": "e", "response": "f"}] + [
    {"prompt": f"{i}+{i}", "response": f"{2 * i}"} for i in range(20)
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "sft.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


def chunks(dataset: PackedDataset) -> list[tuple[list[int], list[int]]]:
    return [(c["input_ids"].tolist(), c["labels"].tolist()) for c in dataset]


def test_chunks_and_labels_of_a_stream_by_hand() -> None:
    dataset = PackedDataset([[0, 1, 2], [3, 4, 5, 6, 7], [8, 9]], seq_length=4)
    assert chunks(dataset) == [([0, 1, 2, 3], [1, 2, 3, 4]), ([4, 5, 6, 7], [5, 6, 7, 8])]
    item = dataset[0]
    assert item["input_ids"].dtype == item["labels"].dtype == torch.int64


@pytest.mark.parametrize(
    ("n_tokens", "n_chunks"), [(0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (10, 2)]
)
def test_a_chunk_needs_a_label_for_its_last_token(n_tokens: int, n_chunks: int) -> None:
    dataset = PackedDataset([list(range(n_tokens))], seq_length=4)
    assert len(dataset) == n_chunks == len(chunks(dataset))
    for outside in (n_chunks, -1):
        with pytest.raises(IndexError, match=str(outside)):
            dataset[outside]


def test_documents_stand_in_the_template_and_end_with_the_end_token(path: Path) -> None:
    dataset = get_packed_sft_dataset(make_tokenizer(), path, 4, shuffle=False, template=PLAIN)
    tokenizer = make_tokenizer()
    expected = []
    for row in ROWS:
        expected += [*tokenizer.encode(f"{row['prompt']}={row['response']}"), EOS]
    assert expected[0] == BOS  # the tokenizer's own token in front stays, as in the assignment
    assert dataset.stream.tolist() == expected
    assert len(dataset) == (len(expected) - 1) // 4 and dataset.broken == []


def test_the_assignment_s_template_is_the_default(path: Path) -> None:
    assert fill_template(ALPACA_TEMPLATE, "Say {hi}.") == (
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n### Instruction:\nSay {hi}.\n\n### Response:\n"
    )
    plain = get_packed_sft_dataset(make_tokenizer(), path, 4, False, template=PLAIN)
    alpaca = get_packed_sft_dataset(make_tokenizer(), path, 4, False)
    assert len(alpaca) > len(plain)
    assert chunks(alpaca) == chunks(
        get_packed_sft_dataset(make_tokenizer(), path, 4, False, template=ALPACA_TEMPLATE)
    )


def test_the_end_token_stands_there_once() -> None:
    tokenizer = make_tokenizer()
    assert encode_text(tokenizer, "c") == [BOS, *tokenizer.encode("c", add_special_tokens=False), 1]
    assert encode_text(tokenizer, "c<eos>")[-2:] != [EOS, EOS]
    with pytest.raises(ValueError, match="no eos_token"):
        encode_text(make_tokenizer(pad_token="<pad>"), "c")


def test_shuffling_moves_whole_documents_and_is_decided_by_the_seed(path: Path) -> None:
    def stream(shuffle: bool, seed: int = 0) -> list[int]:
        return get_packed_sft_dataset(
            make_tokenizer(), path, 4, shuffle, seed=seed, template=PLAIN
        ).stream.tolist()

    def documents(ids: list[int]) -> list[list[int]]:
        starts = [at for at, i in enumerate(ids) if i == BOS]
        return sorted(ids[a:b] for a, b in itertools.pairwise([*starts, len(ids)]))

    assert stream(True) == stream(True) != stream(False)
    assert stream(True, 1) != stream(True)
    assert documents(stream(True)) == documents(stream(False))
    assert len(documents(stream(True))) == len(ROWS)


def test_broken_rows_are_reported_by_line_and_the_rest_is_kept(path: Path) -> None:
    good = path.read_text().splitlines()
    bad = ["{", '{"prompt": "a"}', '{"prompt": "a", "response": " "}', "[1]"]
    path.write_text("\n".join([good[0], *bad, *good[1:]]))
    examples, broken = load_examples(path)
    assert examples == [Example(**row) for row in ROWS]
    assert [row.line for row in broken] == [2, 3, 4, 5]
    assert "'response' is missing" in broken[1].problem
    with pytest.warns(UserWarning, match=r"4 broken rows left out\. line 2: .* and 1 more"):
        dataset = get_packed_sft_dataset(make_tokenizer(), path, 4, False)
    assert dataset.broken == broken
    path.write_text("\n".join(bad))
    with (
        pytest.warns(UserWarning, match="4 broken rows"),
        pytest.raises(ValueError, match="no usable row"),
    ):
        get_packed_sft_dataset(make_tokenizer(), path, 4, False)


def test_a_whole_file_gives_no_warning(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get_packed_sft_dataset(make_tokenizer(), path, 4, False)


@pytest.mark.parametrize("template", ["no field", "{prompt}{prompt}"])
def test_a_template_holds_the_field_once(path: Path, template: str) -> None:
    with pytest.raises(ValueError, match="exactly once"):
        get_packed_sft_dataset(make_tokenizer(), path, 4, False, template=template)


def test_lengths_and_batch_sizes_below_one_are_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="seq_length=0"):
        get_packed_sft_dataset(make_tokenizer(), path, 0, False)
    with pytest.raises(ValueError, match="batch_size=0"):
        iterate_batches(PackedDataset([[1, 2, 3]], 1), 0, False)


def test_batches_have_every_chunk_once_and_the_last_may_be_smaller(path: Path) -> None:
    dataset = get_packed_sft_dataset(make_tokenizer(), path, 4, False, template=PLAIN)
    in_order = iterate_batches(dataset, 8, shuffle=False)
    assert len(in_order) == math.ceil(len(dataset) / 8)
    shapes = [tuple(batch["input_ids"].shape) for batch in in_order]
    assert shapes[:-1] == [(8, 4)] * (len(in_order) - 1)
    assert shapes[-1] == (len(dataset) - 8 * (len(in_order) - 1), 4)
    for name in ("input_ids", "labels"):
        rows = torch.cat([batch[name] for batch in in_order])
        shuffled = torch.cat([batch[name] for batch in iterate_batches(dataset, 8, shuffle=True)])
        assert rows.tolist() == [chunk[name].tolist() for chunk in dataset]
        assert rows.tolist() != shuffled.tolist()
        assert sorted(rows.tolist()) == sorted(shuffled.tolist())


def test_batches_are_decided_by_the_seed_and_passes_differ(path: Path) -> None:
    dataset = get_packed_sft_dataset(make_tokenizer(), path, 4, False, template=PLAIN)

    def passes(seed: int) -> list[list[list[int]]]:
        batches = iterate_batches(dataset, 8, True, seed=seed)
        return [[row for b in batches for row in b["input_ids"].tolist()] for _ in range(2)]

    torch.manual_seed(1)
    first = passes(0)
    torch.manual_seed(2)  # the global generator has no say
    assert passes(0) == first and passes(1) != first
    assert first[0] != first[1]
