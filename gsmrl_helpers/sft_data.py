"""Instruction data: rows of prompt and response, and the assignment's way to pack them.

The supplement of CS336's assignment 5 joins all documents into one stream of tokens and cuts it
into chunks of equal length; `packing` keeps documents whole and apart.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerBase

from gsmrl_helpers.jsonl_files import BrokenRow, read_jsonl, text_field

# Taori et al. (2023), Stanford Alpaca. What follows the last line is the response.
ALPACA_TEMPLATE = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{prompt}\n\n### Response:\n"
)
PROMPT_FIELD = "{prompt}"
REPORTED_ROWS = 3  # how many broken rows a warning names


class Example(NamedTuple):
    """One row of instruction data: what is asked, and the answer to be imitated."""

    prompt: str
    response: str


def parse_example(row: Any) -> Example:
    """The example of a row `{"prompt": …, "response": …}`; other fields are ignored.

    Raises:
        ValueError: a field is missing, or is no text or a blank one.
    """
    return Example(text_field(row, "prompt"), text_field(row, "response"))


def load_examples(path: str | Path) -> tuple[list[Example], list[BrokenRow]]:
    """The examples of a JSON-lines file, gzipped or not, and its broken rows."""
    return read_jsonl(path, parse_example)


def fill_template(template: str, prompt: str) -> str:
    """The text before the response. Not `str.format`: braces in a prompt stay as they are.

    Raises:
        ValueError: the template does not hold `{prompt}` exactly once.
    """
    if (n_fields := template.count(PROMPT_FIELD)) != 1:
        raise ValueError(f"a template must hold {PROMPT_FIELD} exactly once, found {n_fields}")
    return template.replace(PROMPT_FIELD, prompt)


# --- the assignment's packing ------------------------------------------------------------------


def end_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id of the end-of-sequence token; without one, documents can't be told apart.

    Raises:
        ValueError: the tokenizer has none.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError(
            "the tokenizer has no eos_token, which ends every document: set one, for example "
            "tokenizer.eos_token = '<|endoftext|>'"
        )
    return tokenizer.eos_token_id


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """A document's ids, ended by the end token, which stands there once.

    The special tokens that the tokenizer puts in front, such as Llama's `<|begin_of_text|>`, stay.
    """
    end, ids = end_token_id(tokenizer), tokenizer.encode(text)
    return ids if ids and ids[-1] == end else [*ids, end]


class PackedDataset(Dataset):
    """Documents joined into one stream and cut into chunks of L tokens; the rest is dropped.

    Item i is a chunk: `input_ids` (L,) int64 and `labels` (L,) int64, the stream one token on. So
    the last label of a chunk is the first input of the next, and an end token's label is the first
    token of the next document.

    Args:
        documents: token ids, each with its end token.
        seq_length: L.
        broken: rows of the file that were left out.

    Raises:
        ValueError: L is below 1.
    """

    def __init__(
        self,
        documents: Iterable[Sequence[int]],
        seq_length: int,
        broken: Sequence[BrokenRow] = (),
    ) -> None:
        if seq_length < 1:
            raise ValueError(f"seq_length={seq_length}: a chunk needs at least 1 token")
        self.stream = torch.tensor([*chain.from_iterable(documents)], dtype=torch.int64)
        self.seq_length = seq_length
        self.broken = list(broken)

    def __len__(self) -> int:
        # every chunk needs one token more, the label of its last position
        return max(0, len(self.stream) - 1) // self.seq_length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"chunk {index} of {len(self)}")
        start = index * self.seq_length
        chunk = self.stream[start : start + self.seq_length + 1]
        return {"input_ids": chunk[:-1], "labels": chunk[1:]}


def get_packed_sft_dataset(
    tokenizer: PreTrainedTokenizerBase,
    dataset_path: str | Path,
    seq_length: int,
    shuffle: bool,
    *,
    seed: int = 0,
    template: str = ALPACA_TEMPLATE,
) -> PackedDataset:
    """Instruction data as chunks of `seq_length` tokens, prompts and responses alike.

    Broken rows are left out with a warning, and stand in the data set's `broken`.

    Args:
        tokenizer: needs an end-of-sequence token.
        dataset_path: JSON lines with `prompt` and `response`, gzipped or not.
        seq_length: L, of inputs and of labels.
        shuffle: put the documents into another order before they are joined.
        seed: of that order.
        template: the text around a prompt.

    Raises:
        ValueError: no row is left, the tokenizer has no end token, a bad template or length.
    """
    examples, broken = load_examples(dataset_path)
    report_broken(dataset_path, broken)
    if not examples:
        raise ValueError(f"{dataset_path} has no usable row, and {len(broken)} broken ones")
    if shuffle:
        random.Random(seed).shuffle(examples)
    texts = [fill_template(template, prompt) + response for prompt, response in examples]
    return PackedDataset([encode_text(tokenizer, text) for text in texts], seq_length, broken)


def report_broken(path: str | Path, broken: Sequence[BrokenRow]) -> None:
    """Warn of the rows that are left out, the first few by line."""
    if not broken:
        return
    first = "; ".join(f"line {row.line}: {row.problem}" for row in broken[:REPORTED_ROWS])
    more = f"; and {len(broken) - REPORTED_ROWS} more" * (len(broken) > REPORTED_ROWS)
    warnings.warn(f"{path}: {len(broken)} broken rows left out. {first}{more}", stacklevel=3)


def iterate_batches(
    dataset: Dataset, batch_size: int, shuffle: bool, *, seed: int = 0
) -> DataLoader:
    """One pass over the chunks in batches of `batch_size`, of which the last may be smaller.

    Args:
        dataset: items are dicts of tensors of equal shape, as `PackedDataset`'s.
        batch_size: B.
        shuffle: draw the order of the chunks; a second pass draws another one.
        seed: decides the orders of all passes.

    Returns:
        Batches `input_ids` (B, L) and `labels` (B, L); `len` of it is their number.

    Raises:
        ValueError: a batch size below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: a batch needs at least 1 chunk")
    order = torch.Generator().manual_seed(seed)
    return DataLoader(dataset, batch_size=batch_size, shuffle=shuffle, generator=order)
