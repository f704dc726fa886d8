"""Benchmarks in the formats in which they are published, and the prompts that ask them.

=================  =======================================================  ===================
benchmark          file                                                     source
=================  =======================================================  ===================
MMLU               CSV without a header: question, four options, a letter;  Hendrycks et al.,
                   the subject is in the file's name                        2021
GSM8K              JSON lines, see :mod:`gsmrl_helpers.gsm8k`               Cobbe et al., 2021
AlpacaEval         JSON lines: instruction, output, generator, dataset      Li et al., 2023
SimpleSafetyTests  CSV: id, harm_area, counter, category, prompts_final     Vidgen et al., 2023
=================  =======================================================  ===================

The samples in `data/benchmarks` have these formats, and content of the course's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from gsmrl_helpers.csv_files import read_csv, read_csv_with_header
from gsmrl_helpers.jsonl_files import BrokenRow, read_jsonl, shown, text_field
from gsmrl_helpers.paths import DATA_DIR

SAMPLES_DIR = DATA_DIR / "benchmarks"
LETTERS = "ABCD"


class MmluExample(TypedDict):
    """One question of MMLU, as the assignment has it.

    Attributes:
        subject: such as ``abstract_algebra``.
        question: what is asked.
        options: the four answers to choose from, in the order of their letters.
        answer: the letter of the right one.
    """

    subject: str
    question: str
    options: list[str]
    answer: str


def load_mmlu(path: str | Path) -> tuple[list[MmluExample], list[BrokenRow]]:
    """One subject of MMLU, `SUBJECT_test.csv` (or `_dev`, `_val`), and its broken rows.

    pandas reads such a file wrongly unless told otherwise: its first row becomes a header, and an
    option `None` or `N/A` a missing value.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file's name holds no subject.
    """
    subject = subject_of(Path(path))
    return read_csv(path, lambda fields: parse_mmlu_row(fields, subject))


def subject_of(path: Path) -> str:
    """`world_religions` of `world_religions_test.csv`."""
    name = re.fullmatch(r"(?P<subject>\w+)_(?:dev|val|test)\.csv", path.name)
    if name is None:
        raise ValueError(f"{path.name} names no subject: expected SUBJECT_test.csv, _dev or _val")
    return name["subject"]


def parse_mmlu_row(fields: Sequence[str], subject: str) -> MmluExample:
    """The example of a row: a question, four options, a letter; blanks around them are taken off.

    Raises:
        ValueError: not six fields, an empty one, or a last one that is not A, B, C or D.
    """
    if len(fields) != len(LETTERS) + 2:
        raise ValueError(f"expected 6 fields, got {len(fields)}: {shown(fields)}")
    question, *options, answer = [field.strip() for field in fields]
    if not (question and all(options)):
        raise ValueError(f"question and options must not be empty, got {shown(fields)}")
    if len(answer) != 1 or answer not in LETTERS:
        raise ValueError(f"the last field must be one of {', '.join(LETTERS)}, got {answer!r}")
    return {"subject": subject, "question": question, "options": options, "answer": answer}


class Instruction(NamedTuple):
    """One row of AlpacaEval: an instruction and what a reference model (`generator`) answered."""

    instruction: str
    output: str
    generator: str
    dataset: str


def load_alpaca_eval(path: str | Path) -> tuple[list[Instruction], list[BrokenRow]]:
    """The instructions of a JSON-lines file, and its broken rows.

    Raises:
        FileNotFoundError: there is no such file.
    """

    def parse(row: Any) -> Instruction:
        return Instruction(*(text_field(row, field) for field in Instruction._fields))

    return read_jsonl(path, parse)


SAFETY_COLUMNS = ("id", "harm_area", "counter", "category", "prompts_final")


class SafetyPrompt(NamedTuple):
    """One row of SimpleSafetyTests' format.

    Attributes:
        id: as published.
        harm_area: what the prompt is about.
        counter: its number within the area.
        category: whether it asks for information or for help with an action.
        prompt: the text that the model is given (`prompts_final`).
    """

    id: str
    harm_area: str
    counter: int
    category: str
    prompt: str


def load_safety_tests(path: str | Path) -> tuple[list[SafetyPrompt], list[BrokenRow]]:
    """The prompts of a file with SimpleSafetyTests' columns, and its broken rows.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the first row does not name the columns.
    """
    return read_csv_with_header(path, SAFETY_COLUMNS, parse_safety_row)


def parse_safety_row(row: Mapping[str, str]) -> SafetyPrompt:
    """The prompt of a row.

    Raises:
        ValueError: a field is empty, or the counter is not a whole number.
    """
    fields = {column: text_field(row, column).strip() for column in SAFETY_COLUMNS}
    counter = fields["counter"]
    if not (counter.isascii() and counter.isdecimal() and len(counter) < 10):
        raise ValueError(f"counter must be a whole number, got {shown(counter)}")
    return SafetyPrompt(
        fields["id"], fields["harm_area"], int(counter), fields["category"], fields["prompts_final"]
    )


# --- prompts -------------------------------------------------------------------------------------


def mmlu_prompt(example: MmluExample) -> str:
    """The text that asks a question of MMLU: one sentence is wanted, with a letter in it.

    The form of the sentence is the assignment's, the words around it are ours.
    """
    options = zip(LETTERS, example["options"], strict=True)
    return "\n".join(
        [
            f"Answer this multiple-choice question about {example['subject'].replace('_', ' ')}.",
            'Reply with one sentence, "The correct answer is _", and in place of _ write the',
            "letter of the right option: A, B, C or D.",
            "",
            f"Question: {example['question']}",
            *(f"{letter}. {option}" for letter, option in options),
            "Answer:",
        ]
    )


def gsm8k_prompt(question: str) -> str:
    """The text that asks a question of GSM8K, without examples, as the supplement does."""
    return f"{question}\nAnswer:"
