"""A problem, and the row format of GSM8K that it is read from.

A row is ``{"question": ..., "answer": ...}``; the answer ends with a line ``#### gold``
(Cobbe et al., 2021, "Training Verifiers to Solve Math Word Problems"). The pocket problems
are written in the same format, so one reader serves both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLD_MARKER = "####"


@dataclass(frozen=True)
class Problem:
    """One word problem.

    Attributes:
        question: The text the policy is asked.
        answer: The worked answer, marker and gold included.
        gold: The final answer alone: what stands after ``####``, stripped.

    Raises:
        ValueError: The gold still holds ``####``.
    """

    question: str
    answer: str
    gold: str

    def __post_init__(self) -> None:
        require_gold(self.gold)


def require_gold(gold: str) -> str:
    """The gold, if it is one.

    To a grader every gold is a text, and one that nothing equals is never answered: a data set
    read wrongly would only look hard. So golds are looked at where they are loaded.

    Raises:
        ValueError: It is not text, is blank, or still holds ``####``.
    """
    if not isinstance(gold, str) or not gold.strip():
        raise ValueError(f"a gold must be a non-empty string, got {_shorten(gold)}")
    if GOLD_MARKER in gold:
        raise ValueError(f"the gold is what follows {GOLD_MARKER!r}, got {_shorten(gold)}")
    return gold


def problem_from_row(row: Mapping[str, Any]) -> Problem:
    """Read one row of GSM8K's format.

    Args:
        row: A mapping with the strings ``question`` and ``answer``.

    Returns:
        The problem, its gold taken from after the one ``####`` of the answer.

    Raises:
        ValueError: The row lacks a field, has an empty question, an empty gold, or does not
            hold ``####`` exactly once.
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"expected a row with 'question' and 'answer', got {_shorten(row)}")
    for field in ("question", "answer"):
        value = row.get(field)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"field {field!r} must be a non-empty string in row {_shorten(row)}")
    question, answer = row["question"], row["answer"]
    if (n_markers := answer.count(GOLD_MARKER)) != 1:
        raise ValueError(
            f"the answer must hold {GOLD_MARKER!r} exactly once, found it {n_markers} times "
            f"in row {_shorten(row)}"
        )
    gold = answer.partition(GOLD_MARKER)[2].strip()
    if not gold:
        raise ValueError(f"nothing follows {GOLD_MARKER!r} in row {_shorten(row)}")
    return Problem(question=question, answer=answer, gold=gold)


def read_problems_jsonl(path: str | Path) -> list[Problem]:
    """Read a file of problems, one JSON row a line.

    Raises:
        ValueError: A line is blank, is not JSON, or is not a valid row; the message names the
            file and the line (counted from 1).
        FileNotFoundError: There is no such file.
    """
    problems = []
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                raise ValueError(f"{path}, line {number}: blank line, expected a JSON row")
            try:
                problems.append(problem_from_row(json.loads(line)))
            except ValueError as error:  # JSONDecodeError is one
                raise ValueError(f"{path}, line {number}: {error}") from error
    return problems


def _shorten(row: object, limit: int = 120) -> str:
    """The row's text, cut so that an error message stays readable."""
    text = repr(row)
    return text if len(text) <= limit else text[: limit - 1] + "…"
