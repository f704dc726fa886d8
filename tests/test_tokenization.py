"""Prompts and responses as token ids, and the mask that is aligned with the shifted labels."""

from __future__ import annotations

import pytest
import torch

from gsmrl_helpers.tokenization import tokenize_prompt_and_output
from tests.tiny_policy import make_tokenizer

PAD, EOS = 2, 1


def ids(text: str) -> list[int]:
    return make_tokenizer().encode(text, add_special_tokens=False)


def test_rows_are_joined_right_padded_and_shifted() -> None:
    batch = tokenize_prompt_and_output(["2+2=", "c"], ["4", "de"], make_tokenizer())
    first, second = ids("2+2=4"), [*ids("cde"), PAD, PAD]
    assert batch["input_ids"].tolist() == [first[:-1], second[:-1]]
    assert batch["labels"].tolist() == [first[1:], second[1:]]
    assert batch["response_mask"].dtype == torch.bool
    assert batch["response_mask"].tolist() == [
        [False, False, False, True],
        [True, True, False, False],
    ]


def test_the_first_response_token_is_predicted_from_the_last_prompt_token() -> None:
    batch = tokenize_prompt_and_output(["c=", "d"], ["hi", "j"], make_tokenizer())
    position = int(batch["response_mask"][0].nonzero()[0])
    assert batch["input_ids"][0, position] == ids("=")[0]
    assert batch["labels"][0, position] == ids("h")[0]


def test_the_mask_counts_the_response_tokens_of_every_row() -> None:
    responses = ["", "4", "abab", "1 2 3"]
    batch = tokenize_prompt_and_output(["c"] * 4, responses, make_tokenizer())
    assert batch["response_mask"].sum(1).tolist() == [0, 1, 2, 5]
    for row, response in enumerate(responses):
        masked_labels = batch["labels"][row][batch["response_mask"][row]]
        assert masked_labels.tolist() == ids(response)


def test_prompt_and_response_are_tokenized_apart() -> None:
    assert len(ids("ab")) == 1
    batch = tokenize_prompt_and_output(["a"], ["b"], make_tokenizer())
    assert batch["input_ids"].tolist() == [ids("a")]
    assert batch["labels"].tolist() == [ids("b")]


def test_no_special_token_is_added() -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.encode("c")[0] == 0  # the tokenizer itself would put <bos> in front
    batch = tokenize_prompt_and_output(["c"], ["d"], tokenizer)
    assert [*batch["input_ids"][0].tolist(), *batch["labels"][0].tolist()] == ids("cd")


def test_sampled_ids_are_kept_as_sampled() -> None:
    # "a", "b" sampled as two tokens would come back from the text as the one token "ab".
    sampled = [[*ids("a"), *ids("b"), EOS], []]
    batch = tokenize_prompt_and_output(
        ["c", "d"], ["ab", "unused"], make_tokenizer(), output_token_ids=sampled
    )
    assert batch["labels"][0].tolist() == sampled[0]
    assert batch["response_mask"].sum(1).tolist() == [3, 0]


def test_padding_falls_back_on_the_end_of_sequence_token() -> None:
    tokenizer = make_tokenizer(eos_token="<eos>")
    batch = tokenize_prompt_and_output(["c", "c"], ["123", ""], tokenizer)
    assert batch["labels"][1].tolist() == [EOS] * 3


def test_a_tokenizer_without_anything_to_pad_with_is_refused() -> None:
    with pytest.raises(ValueError, match="neither pad_token_id nor eos_token_id"):
        tokenize_prompt_and_output(["c"], ["d"], make_tokenizer(bos_token="<bos>"))


@pytest.mark.parametrize("prompts, outputs", [([], []), (["c"], ["d", "e"])])
def test_unequal_or_no_rows_are_refused(prompts: list[str], outputs: list[str]) -> None:
    with pytest.raises(ValueError, match=f"{len(prompts)} prompts and {len(outputs)} outputs"):
        tokenize_prompt_and_output(prompts, outputs, make_tokenizer())


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt 1 has no tokens"):
        tokenize_prompt_and_output(["c", ""], ["d", "e"], make_tokenizer())
