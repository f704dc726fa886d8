r"""Graders: is the number in a response the gold number?

Nothing a model wrote is evaluated. Numbers are read by a regular expression and compared
exactly, as fractions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

RewardFn = Callable[[str, str], dict[str, float]]

_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,100})(?:\.[0-9]{1,100})?", re.ASCII)


def parse_number(text: str) -> Fraction | None:
    """The exact number that the whole of ``text`` writes, or None."""
    text = text.strip().removesuffix(".").replace("$", "")
    if len(text) > 100 or not _NUMBER.fullmatch(text):
        return None
    return Fraction(text.replace(",", ""))


def r1_zero_reward_fn(response: str, ground_truth: str) -> dict[str, float]:
    """Grade the text of ``</think> <answer> … </answer>`` against the gold number."""
    head, opened, rest = response.partition("</think> <answer>")
    answer, closed, _ = rest.partition("</answer>")
    return _rewards(answer if opened and closed else None, ground_truth)


def question_only_reward_fn(response: str, ground_truth: str) -> dict[str, float]:
    r"""Grade the content of the last ``\boxed{…}`` against the gold number."""
    found = re.findall(r"\\boxed\{([^{}]*)\}", response)
    return _rewards(found[-1] if found else None, ground_truth)


def _rewards(answer: str | None, ground_truth: str) -> dict[str, float]:
    gold = parse_number(ground_truth)
    right = answer is not None and gold is not None and parse_number(answer) == gold
    return {
        "reward": float(right),
        "format_reward": float(answer is not None),
        "answer_reward": float(right),
    }


REWARD_FNS: dict[str, RewardFn] = {
    "question_only": question_only_reward_fn,
    "r1_zero": r1_zero_reward_fn,
}
