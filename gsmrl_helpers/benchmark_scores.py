"""How sure a score on a benchmark is, and a change of it on the same questions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scipy.stats import binomtest, norm

Z = float(norm.ppf(0.975))


def wilson(share: float, total: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927), in closed form, so that ties may count a half.

    Of values between 0 and 1 with this mean those that are 0 or 1 scatter most: with half points
    the interval is rather too wide than too narrow.

    Raises:
        ValueError: no value, or a share outside of 0 to 1.
    """
    if total < 1 or not 0 <= share <= 1:
        raise ValueError(f"share={share}, total={total}: at least one value, and a share in 0…1")
    spread = Z * math.sqrt(share * (1 - share) / total + Z**2 / (4 * total**2))
    middle, scale = share + Z**2 / (2 * total), 1 + Z**2 / total
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def grade_answers(
    parsed: Sequence[str | None],
    golds: Sequence[str],
    is_right: Callable[[str, str], bool] = operator.eq,
) -> list[bool]:
    """Whether each answer is right; one that could not be read (None) is wrong.

    Args:
        parsed: what a parser found in each response.
        golds: the right answers, in the same order.
        is_right: compares the two, such as :func:`gsmrl_helpers.grading.is_equal` for numbers.

    Raises:
        ValueError: not as many answers as golds.
    """
    if len(parsed) != len(golds):
        raise ValueError(f"{len(parsed)} answers to {len(golds)} questions")
    pairs = zip(parsed, golds, strict=True)
    return [answer is not None and is_right(answer, gold) for answer, gold in pairs]


class Accuracy(NamedTuple):
    """A score: how many answers were right, how many could not be read, and the share's interval.

    What could not be read counts as wrong. Where it is much, the score says more about the form of
    the answers than about what the model knows.
    """

    right: int
    unread: int
    total: int
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.right / self.total

    def __str__(self) -> str:
        interval = f"{self.share:.1%} [{self.low:.1%}, {self.high:.1%}]"
        return f"{interval}, {self.right} of {self.total} right, {self.unread} unread"


def accuracy(right: Sequence[bool], unread: int = 0) -> Accuracy:
    """The accuracy of these answers, with its 95 % interval.

    Args:
        right: whether each answer is right; False where it could not be read.
        unread: how many could not be read.

    Raises:
        ValueError: no answer, or more unread ones than wrong ones.
    """
    n_right, total = sum(map(bool, right)), len(right)
    if not 0 <= unread <= total - n_right or total == 0:
        raise ValueError(f"{total} answers, {n_right} right, {unread} unread: that can't be")
    return Accuracy(n_right, unread, total, *wilson(n_right / total, total))


# --- how many questions it takes -----------------------------------------------------------------


def questions_needed(first: float, second: float, power: float = 0.8) -> int:
    """Questions for each of two models, of accuracies `first` and `second`, to be told apart.

    Two-sided test at 5 % of two independent shares, normal approximation: each model gets questions
    of its own. With probability `power` the test finds the difference.

    Raises:
        ValueError: equal accuracies, ones outside of 0 to 1, or a power outside of 0 to 1.
    """
    check_shares(first, second, power)
    if first == second:
        raise ValueError(f"both accuracies are {first}: no number of questions tells them apart")
    variance = first * (1 - first) + second * (1 - second)
    needed = (Z + norm.ppf(power)) ** 2 * variance / (first - second) ** 2
    return math.ceil(needed)


def paired_questions_needed(lost: float, gained: float, power: float = 0.8) -> int:
    """Questions that both models answer, to see that more were gained than lost.

    Only questions on which they differ count (McNemar's test at 5 %, two-sided; the normal
    approximation of Connor, 1987).

    Args:
        lost: share of questions that only the first answers rightly.
        gained: share that only the second does; `gained - lost` is the difference of accuracies.

    Raises:
        ValueError: equal shares, ones outside of 0 to 1, or a power outside of 0 to 1.
    """
    check_shares(lost, gained, power)
    changed, difference = lost + gained, gained - lost
    if difference == 0 or changed > 1:
        raise ValueError(f"lost={lost}, gained={gained}: they must differ, and sum to at most 1")
    quantile = norm.ppf(power)
    root = Z * math.sqrt(changed) + quantile * math.sqrt(changed - difference**2)
    return math.ceil(root**2 / difference**2)


def check_shares(first: float, second: float, power: float) -> None:
    """Raise a ValueError unless all three are shares, and the power can be reached."""
    if not (0 <= first <= 1 and 0 <= second <= 1 and 0 < power < 1):
        raise ValueError(f"{first}, {second}, power={power}: shares lie between 0 and 1")


# --- before and after, on the same questions -----------------------------------------------------


class Change(NamedTuple):
    """Two models on the same questions.

    Attributes:
        both, lost, gained, neither: questions that both answer rightly, only the first, only the
            second, none.
        low, high: the 95 % interval of the difference of accuracies, second minus first.
        p_value: of McNemar's exact test that losses and gains are equally likely.
    """

    both: int
    lost: int
    gained: int
    neither: int
    low: float
    high: float
    p_value: float

    @property
    def difference(self) -> float:
        return (self.gained - self.lost) / (self.both + self.lost + self.gained + self.neither)

    def __str__(self) -> str:
        points = (
            f"{100 * self.difference:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        )
        return f"{points}, {self.gained} gained, {self.lost} lost, p = {self.p_value:.2g}"


def compare_paired(before: Sequence[bool], after: Sequence[bool]) -> Change:
    """McNemar's exact test (1947) and the interval of Agresti and Min (2005) for a difference.

    Args:
        before, after: whether each question was answered rightly, in the same order.

    Raises:
        ValueError: no question, or not the same number of them.
    """
    if len(before) != len(after) or not before:
        raise ValueError(
            f"{len(before)} answers before, {len(after)} after: not the same questions"
        )
    pairs = [(bool(old), bool(new)) for old, new in zip(before, after, strict=True)]
    lost, gained = pairs.count((True, False)), pairs.count((False, True))
    p_value = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    low, high = difference_interval(lost, gained, len(pairs))
    both, neither = pairs.count((True, True)), pairs.count((False, False))
    return Change(both, lost, gained, neither, low, high, float(p_value))


def difference_interval(lost: int, gained: int, total: int) -> tuple[float, float]:
    """The 95 % interval of `(gained - lost) / total`, with half an answer added to each of the four
    counts."""
    lost_, gained_, total_ = lost + 0.5, gained + 0.5, total + 2
    middle = (gained_ - lost_) / total_
    half = Z * math.sqrt((lost_ + gained_) / total_ - middle**2) / math.sqrt(total_)
    return max(-1.0, middle - half), min(1.0, middle + half)
