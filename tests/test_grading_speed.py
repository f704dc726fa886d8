r"""How long grading takes, in CPU time: what else runs on the machine does not count."""

from __future__ import annotations

import random
import time

import pytest

import gsmrl_helpers.equivalence  # noqa: F401  loads sympy before a test is timed
from gsmrl_helpers.expression_reader import parse_answer
from gsmrl_helpers.grader_corpora import (
    EXPRESSIONS,
    PLAIN,
    POISON,
    Pair,
    math_verify_alone,
    random_expression_pair,
    timed_verdicts,
)
from gsmrl_helpers.grading import is_equal, r1_zero_reward_fn


def best_rate(repeats: int = 15) -> float:
    """Responses a second, of the fastest batch of some: the one least disturbed."""
    text = " Some thinking about it." * 40 + "</think> <answer> {} </answer>"
    batch = [(text.format(pair.answer), pair.gold) for pair in PLAIN * 60]
    seconds = []
    for _ in range(repeats):
        start = time.thread_time()
        for response, gold in batch:
            r1_zero_reward_fn(response, gold)
        seconds.append(time.thread_time() - start)
    return len(batch) / min(seconds)


def test_plain_answers_are_graded_at_100_000_a_second():
    assert best_rate() > 100_000  # 130,000 on a shared core


def test_plain_answers_have_their_verdicts():
    assert [v.is_right for v in timed_verdicts(is_equal, PLAIN)] == [p.is_right for p in PLAIN]


def drawn(n: int) -> list[Pair]:
    """Pairs that both pass the gate, and have a gold that is no number."""
    rng, pairs = random.Random(0), []
    while len(pairs) < n:
        pair = random_expression_pair(rng)
        answer, gold = parse_answer(pair.answer), parse_answer(pair.gold)
        if answer and gold and gold.items[0].operation != "leaf":
            pairs.append(pair)
    return pairs


@pytest.mark.parametrize(
    ("corpus", "pairs"),
    [
        ("expressions", EXPRESSIONS * 30),
        ("drawn", drawn(1100)),
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
