"""What the grader makes of answers: three categories, and an audit of the two that earn nothing.

1. in format and right, 2. in format and wrong, 3. not in format. Behind category 2 may be answers
that are right and were not read, behind category 3 answers that are right and stand elsewhere.
"""

from __future__ import annotations

import re

import pandas as pd

from gsmrl_helpers.benchmark_scores import wilson
from gsmrl_helpers.grading import find_boxed, find_tagged, is_equal

CATEGORIES = {1: "right", 2: "wrong, in format", 3: "not in format"}
NUMBER = re.compile(r"(?:(?<!\d)[-−])?\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?")


def category(format_reward: float, answer_reward: float) -> int:
    """1 in format and right, 2 in format and wrong, 3 not in format.

    Raises:
        ValueError: a right answer out of format, which no grader of ours returns.
    """
    if answer_reward > format_reward:
        raise ValueError(f"answer_reward={answer_reward} with format_reward={format_reward}")
    return 3 - int(format_reward) - int(answer_reward)


def with_category(rollouts: pd.DataFrame) -> pd.DataFrame:
    """The rollouts with a column `category`, from `format_reward` and `answer_reward`."""
    rewards = zip(rollouts["format_reward"], rollouts["answer_reward"], strict=True)
    return rollouts.assign(category=[category(*pair) for pair in rewards])


def wilson_interval(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927); unlike p ± 2·SE it is right at 0 of n, too."""
    return wilson(count / total, total)


def category_table(rollouts: pd.DataFrame) -> pd.DataFrame:
    """One row a prompt and category: its count, its share and the share's 95 % interval.

    Args:
        rollouts: with the columns `prompt` and `category`.
    """
    rows = []
    for prompt, group in rollouts.groupby("prompt", sort=False):
        for number, name in CATEGORIES.items():
            count = int((group["category"] == number).sum())
            interval = wilson_interval(count, len(group))
            rows.append((prompt, name, count, count / len(group), *interval))
    columns = ["prompt", "category", "count", "share", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def graded_text(response: str, grader: str) -> str | None:
    r"""The piece of a response that a grader compares with the gold; None if there is none.

    All of it is read, and a ``\boxed`` within it counts as its content.
    """
    return find_boxed(response) if grader == "question_only" else find_tagged(response)


def judge(text: str, gold: str) -> str:
    """A reader who forgives any form: is the last number of a text the gold one?

    It is fooled by a text that lists guesses and happens to end with the right one.

    Returns:
        "right", "wrong" or "no number".
    """
    numbers = NUMBER.findall(text)
    if not numbers:
        return "no number"
    return "right" if is_equal(numbers[-1], gold) else "wrong"


def with_verdict(rollouts: pd.DataFrame) -> pd.DataFrame:
    """The rollouts with a column `verdict`: `judge` on what was graded, or else on everything.

    Args:
        rollouts: with the columns `response`, `grader`, `gold` and `category`.
    """
    verdicts = []
    for row in rollouts.itertuples():
        text = graded_text(row.response, row.grader)
        verdict = judge(row.response if text is None else text, row.gold)
        verdicts.append("right" if row.category == 1 else verdict)
    return rollouts.assign(verdict=verdicts)
