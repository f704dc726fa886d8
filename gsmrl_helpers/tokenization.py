"""Prompts and responses as token ids, with a mask that says which labels the model wrote."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase


def tokenize_prompt_and_output(
    prompt_strs: Sequence[str],
    output_strs: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    output_token_ids: Sequence[Sequence[int]] | None = None,
) -> dict[str, Tensor]:
    """Tokenize prompts and outputs apart, join and right-pad them, and shift by one for training.

    Prompt and output never merge into one token, no special token is added between or around
    them, and no end-of-sequence token is appended. With T = the longest joined row:

    Args:
        prompt_strs: B prompts, each of at least one token.
        output_strs: B responses; one may be empty.
        tokenizer: pads with its `pad_token_id`, else with its `eos_token_id`.
        output_token_ids: B lists of ids that stand in for `output_strs`: the tokens as they were
            sampled, which re-encoding their text need not give back (a sampled EOS included).

    Returns:
        Three tensors of shape (B, T - 1):
            `input_ids` (int64): the joined rows without their last position;
            `labels` (int64): the joined rows without their first position, so that `labels[:, t]`
                is the token that the model predicts at `input_ids[:, t]`;
            `response_mask` (bool): True where the label is a response token. The first response
                token is predicted from the last prompt token, so its mask sits there.

    Raises:
        ValueError: no rows; unequal numbers of rows; a prompt without tokens; a tokenizer that
            has neither a padding nor an end-of-sequence token.
    """
    # A group repeats its prompt.
    prompt_ids = {text: encode(tokenizer, text) for text in dict.fromkeys(prompt_strs)}
    prompts = [prompt_ids[text] for text in prompt_strs]
    if output_token_ids is None:
        outputs = [encode(tokenizer, text) for text in output_strs]
    else:
        outputs = [[*map(int, ids)] for ids in output_token_ids]
    check_rows(prompts, outputs)

    rows, masks = [], []
    for prompt, output in zip(prompts, outputs, strict=True):
        rows.append(torch.tensor(prompt + output))
        masks.append(torch.tensor([False] * len(prompt) + [True] * len(output)))
    tokens = pad_sequence(rows, batch_first=True, padding_value=padding_token_id(tokenizer))
    mask = pad_sequence(masks, batch_first=True, padding_value=False)
    return {
        "input_ids": tokens[:, :-1],
        "labels": tokens[:, 1:],
        "response_mask": mask[:, 1:],  # shifted, as the labels are
    }


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of `text` alone, without the special tokens a tokenizer may like to add."""
    return tokenizer.encode(text, add_special_tokens=False)


def padding_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that fills a row's end: the padding token, else the end-of-sequence token.

    Raises:
        ValueError: the tokenizer has neither.
    """
    # Which of the two is of no consequence: no position that counts ever attends to padding.
    for token_id in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token_id is not None:
            return token_id
    raise ValueError(
        "the tokenizer has neither pad_token_id nor eos_token_id: set one, "
        "for example tokenizer.pad_token = tokenizer.eos_token"
    )


def check_rows(prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> None:
    """Refuse token ids from which no batch can be made.

    Raises:
        ValueError: no rows; not one output for each prompt; a prompt without tokens.
    """
    if len(prompts) != len(outputs) or len(prompts) == 0:
        raise ValueError(
            f"prompts and outputs must be equally many, and at least one: "
            f"got {len(prompts)} prompts and {len(outputs)} outputs"
        )
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(
                f"prompt {index} has no tokens: the first response token would have no position "
                "to be predicted from"
            )


def as_user_turn(text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text as a user's turn of the tokenizer's conversation format, the answer's head below it.

    Raises:
        ValueError: the tokenizer has no chat template, as a base model's hasn't.
    """
    message = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
