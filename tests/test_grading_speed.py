r"""How long grading takes, in CPU time: what else runs on the machine does not count."""

from __future__ import annotations

import time

import pytest

import gsmrl_helpers.equivalence  # noqa: F401  loads sympy before a test is timed
from gsmrl_helpers.grader_corpora import (
    EXPRESSIONS,
    PLAIN,
    POISON,
    Pair,
    comparable_pairs,
    math_verify_alone,
    plain_rate,
    timed_verdicts,
)
from gsmrl_helpers.grading import is_equal, r1_zero_reward_fn


def test_plain_answers_are_graded_at_100_000_a_second():
    """In the best of some turns: a neighbour on the same silicon slows CPU time down, too."""
    rates = []
    while max(rates, default=0) <= 100_000 and len(rates) < 40:
        time.sleep(0.5 * bool(rates))
        rates.append(plain_rate(r1_zero_reward_fn, repeats=60))
    assert max(rates) > 100_000  # 190,000 on a free core, 150,000 on an older one


def test_plain_answers_have_their_verdicts():
    assert [v.is_right for v in timed_verdicts(is_equal, PLAIN)] == [p.is_right for p in PLAIN]


@pytest.mark.parametrize(
    ("corpus", "pairs"),
    [
        ("expressions", EXPRESSIONS * 31),
        ("drawn", comparable_pairs(1100)),
        ("poison", [Pair(p, gold, False) for p in POISON for gold in ("18", r"\pi", p)] * 10),
    ],
)
def test_the_slow_path_is_bounded(corpus, pairs):
    verdicts = timed_verdicts(is_equal, pairs)
    assert [v.is_right for v in verdicts] == [p.is_right for p in pairs]
    seconds = sorted(v.seconds for v in verdicts)
    assert len(pairs) > 1000
    assert seconds[int(0.999 * len(seconds))] <= 0.05
    assert seconds[-1] <= 0.25


def test_math_verify_alone_is_slower_and_reads_more_into_an_answer():
    pairs = [*PLAIN, Pair("17=18", "18", False), Pair("9+9", "18", False)]
    ours, theirs = (timed_verdicts(judge, pairs) for judge in (is_equal, math_verify_alone))
    assert [v.is_right for v in ours] == [p.is_right for p in pairs]
    assert [v.is_right for v in theirs[-2:]] == [True, True]
    assert sum(v.seconds for v in theirs) > 10 * sum(v.seconds for v in ours)
