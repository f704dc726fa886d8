"""Scores on a benchmark: against scipy's intervals, exact tests, and simulated questions."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from scipy.stats import binomtest

from gsmrl_helpers.benchmark_scores import (
    accuracy,
    compare_paired,
    difference_interval,
    grade_answers,
    paired_questions_needed,
    questions_needed,
    wilson,
)
from gsmrl_helpers.grading import is_equal


@pytest.mark.parametrize(("count", "total"), [(0, 10), (10, 10), (3, 7), (61, 100), (1, 1)])
def test_the_interval_is_wilsons(count: int, total: int) -> None:
    expected = binomtest(count, total).proportion_ci(method="wilson")
    assert wilson(count / total, total) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_ties_may_count_a_half():
    low, high = wilson(0.45, 10)
    assert wilson(0.4, 10)[0] < low < 0.45 < high < wilson(0.5, 10)[1]


@pytest.mark.parametrize(("share", "total"), [(0.5, 0), (-0.1, 10), (1.1, 10)])
def test_what_is_no_share_is_an_error(share: float, total: int) -> None:
    with pytest.raises(ValueError, match="at least one value"):
        wilson(share, total)


def test_what_was_not_read_is_wrong():
    assert grade_answers(["A", None, "C"], ["A", "B", "D"]) == [True, False, False]
    assert grade_answers(["1080", None], ["1,080", "3"], is_equal) == [True, False]
    with pytest.raises(ValueError, match="2 answers to 1 questions"):
        grade_answers(["A", None], ["A"])


def test_an_accuracy_counts_what_is_unread_as_wrong():
    found = accuracy([True, True, False, False], unread=1)
    assert (found.right, found.unread, found.total, found.share) == (2, 1, 4, 0.5)
    assert str(found) == "50.0% [15.0%, 85.0%], 2 of 4 right, 1 unread"


@pytest.mark.parametrize(("right", "unread"), [([], 0), ([True], 1), ([False], -1)])
def test_an_accuracy_that_can_not_be_is_an_error(right: list[bool], unread: int) -> None:
    with pytest.raises(ValueError, match="that can't be"):
        accuracy(right, unread)


def test_two_points_take_thousands_of_questions():
    assert questions_needed(0.60, 0.62) == 9333
    assert questions_needed(0.62, 0.60) == 9333
    assert questions_needed(0.60, 0.70) == 354
    assert paired_questions_needed(0.04, 0.06) == 1960


def test_the_power_is_the_one_that_was_asked_for():
    generator, runs = np.random.default_rng(0), 20_000
    n = paired_questions_needed(0.05, 0.15)
    lost, gained, _ = generator.multinomial(n, [0.05, 0.15, 0.8], size=runs).T
    pairs = list(zip(gained.tolist(), lost.tolist(), strict=True))
    found = {pair: binomtest(pair[0], sum(pair)).pvalue < 0.05 for pair in set(pairs) if sum(pair)}
    power = np.mean([found.get(pair, False) for pair in pairs])
    assert 0.74 < power < 0.82  # the exact test is a little more careful than its approximation


@pytest.mark.parametrize("arguments", [(0.5, 0.5), (0.5, 1.5), (0.4, 0.5, 1.0)])
def test_numbers_of_questions_that_do_not_exist(arguments):
    with pytest.raises(ValueError, match=r"told|tells|shares lie"):
        questions_needed(*arguments)


@pytest.mark.parametrize("arguments", [(0.1, 0.1), (0.6, 0.5), (0.1, 0.2, 0.0), (-0.1, 0.1)])
def test_paired_numbers_of_questions_that_do_not_exist(arguments):
    with pytest.raises(ValueError, match=r"must differ|shares lie"):
        paired_questions_needed(*arguments)


def test_a_change_is_tested_on_the_questions_that_changed():
    before = [True] * 50 + [True] * 2 + [False] * 9 + [False] * 39
    after = [True] * 50 + [False] * 2 + [True] * 9 + [False] * 39
    change = compare_paired(before, after)
    assert change[:4] == (50, 2, 9, 39)
    assert change.difference == pytest.approx(0.07)
    expected = 2 * sum(comb(11, k) for k in range(3)) / 2**11
    assert change.p_value == pytest.approx(expected)
    assert change.low < 0.07 < change.high
    back = compare_paired(after, before)
    assert (back.low, back.high) == pytest.approx((-change.high, -change.low))


def test_without_a_change_nothing_is_known():
    change = compare_paired([True, False], [True, False])
    assert change.p_value == 1 and change.difference == 0
    assert change.low == pytest.approx(-change.high) and change.high > 0.4


@pytest.mark.parametrize(("before", "after"), [([], []), ([True], [True, False])])
def test_other_questions_are_an_error(before, after):
    with pytest.raises(ValueError, match="not the same questions"):
        compare_paired(before, after)


@pytest.mark.parametrize("shares", [(0.02, 0.05), (0.1, 0.1), (0.0, 0.03)])
def test_the_interval_of_a_difference_holds(shares):
    lost_share, gained_share = shares
    generator, n = np.random.default_rng(1), 200
    counts = generator.multinomial(n, [lost_share, gained_share, 1 - sum(shares)], size=4000)
    intervals = np.array([difference_interval(lost, gained, n) for lost, gained, _ in counts])
    true = gained_share - lost_share
    held = (intervals[:, 0] <= true) & (true <= intervals[:, 1])
    assert 0.93 < held.mean() < 0.985
