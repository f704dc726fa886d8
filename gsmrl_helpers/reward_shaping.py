"""Rewards for a verifiable answer, made of the same parts and each a formula of them.

A grader says whether a response is correct (C) and in format (F); whether the gold number stands
anywhere in it (N) needs no grader. A formula says what is paid for:

===================  ======================  =====================================================
formula              reward                  what it means
===================  ======================  =====================================================
``answer_only``      C                       only the answer counts
``format_bonus``     C + .1·F                a little for writing it so that it can be found
``partial_credit``   max(C, .5·N) + .1·F     half for the number anywhere: ``1 2 3 … 100`` has it
``format_only``      .1·F                    nothing for the answer: the format is learned, no more
``conditional``      C + .1·C·F              the bonus for correct answers alone
===================  ======================  =====================================================

Any of them can be put on any grader with :func:`shape_reward`; in a run by name, as in
``r1_zero+format_only``. :func:`rlvr_reward` and the three beside it are the week's rewards: these
formulas on the grader of ``#### 18``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from gsmrl_helpers.grading import (
    GRADERS,
    RewardFn,
    find_tagged,
    is_equal,
    r1_zero_reward_fn,
)
from gsmrl_helpers.numerals import names_number, parse_number
from gsmrl_helpers.problems import GOLD_MARKER

TAG = re.compile(r"</?(?:think|answer)>")
FORMAT_BONUS = 0.1
PARTIAL_CREDIT = 0.5


class Parts(NamedTuple):
    """What a reward can pay for, each part 1.0 or 0.0."""

    correct: float
    in_format: float
    anywhere: float


Formula = Callable[[Parts], float]


def answer_only(parts: Parts) -> float:
    """C."""
    return parts.correct


def format_bonus(parts: Parts) -> float:
    """C + .1·F."""
    return parts.correct + FORMAT_BONUS * parts.in_format


def partial_credit(parts: Parts) -> float:
    """max(C, .5·N) + .1·F."""
    return max(parts.correct, PARTIAL_CREDIT * parts.anywhere) + FORMAT_BONUS * parts.in_format


def format_only(parts: Parts) -> float:
    """.1·F."""
    return FORMAT_BONUS * parts.in_format


def conditional(parts: Parts) -> float:
    """C + .1·C·F."""
    return parts.correct + FORMAT_BONUS * parts.correct * parts.in_format


FORMULAS: dict[str, Formula] = {
    formula.__name__: formula
    for formula in (answer_only, format_bonus, partial_credit, format_only, conditional)
}


def shape_reward(grader: RewardFn, formula: Formula) -> RewardFn:
    """The grader with another reward: its own parts, paid for by the formula."""

    def reward_fn(response: str, ground_truth: str | None) -> dict[str, float]:
        graded = grader(response, ground_truth)
        anywhere = isinstance(ground_truth, str) and names_number(response, ground_truth)
        parts = Parts(graded["answer_reward"], graded["format_reward"], float(anywhere))
        return {**graded, "reward": formula(parts)}

    return reward_fn


# --- the week's rewards ------------------------------------------------------------------------


def marker_reward_fn(response: str, ground_truth: str | None) -> dict[str, float]:
    """Grade a response that ends with ``#### 18``.

    It is in format if it holds the marker exactly once and a number, nothing else, on the rest of
    the line. Without format there is no answer: of two markers, neither counts.
    """
    _, marker, after = response.partition(GOLD_MARKER)
    line = after.strip(" \t").partition("\n")[0]
    in_format = bool(marker) and GOLD_MARKER not in after and parse_number(line) is not None
    correct = in_format and is_equal(line, ground_truth)
    return {
        "reward": float(correct),
        "format_reward": float(in_format),
        "answer_reward": float(correct),
    }


def well_formed_reward_fn(response: str, ground_truth: str | None) -> dict[str, float]:
    """`r1_zero_reward_fn`, paid only where the three tags that it expects stand well.

    The literal format takes what stands in the first pair of answer tags, whatever else there is.
    Here each tag stands once, in its order, and the answer is not blank. That is still no proof
    that anything was thought.
    """
    graded = r1_zero_reward_fn(response, ground_truth)
    in_order = TAG.findall(response) == ["</think>", "<answer>", "</answer>"]
    well_formed = in_order and bool((find_tagged(response) or "").strip())
    return {name: value * well_formed for name, value in graded.items()}


def rlvr_reward(response: str, ground_truth: str) -> float:
    """1 for the right number after ``####``, and .1 for the format: the marker exactly once."""
    return shape_reward(marker_reward_fn, format_bonus)(response, ground_truth)["reward"]


def partial_reward(response: str, ground_truth: str) -> float:
    """Like `rlvr_reward`, and at least .5 if the right number stands anywhere."""
    return shape_reward(marker_reward_fn, partial_credit)(response, ground_truth)["reward"]


def format_reward(response: str, ground_truth: str) -> float:
    """.1 for the format, whatever number it is."""
    return shape_reward(marker_reward_fn, format_only)(response, ground_truth)["reward"]


def conditional_reward(response: str, ground_truth: str) -> float:
    """1.1 for the right number after ``####``, else nothing."""
    return shape_reward(marker_reward_fn, conditional)(response, ground_truth)["reward"]


# --- by name -----------------------------------------------------------------------------------

_GRADERS = {
    **GRADERS,
    "marker": marker_reward_fn,
    "r1_zero_well_formed": well_formed_reward_fn,
}

# What a run can name: a grader, or a grader and a formula, as in "r1_zero+format_only".
REWARD_FNS: dict[str, RewardFn] = _GRADERS | {
    f"{grader}+{formula}": shape_reward(_GRADERS[grader], FORMULAS[formula])
    for grader in _GRADERS
    for formula in FORMULAS
    if formula != "answer_only"
}
