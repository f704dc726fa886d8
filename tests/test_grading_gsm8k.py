"""The 8,792 golds of GSM8K: every way to write one is right, every near miss is wrong."""

from __future__ import annotations

import os

import pytest

from gsmrl_helpers.grader_corpora import near_misses, ways_to_write
from gsmrl_helpers.grading import is_equal, question_only_reward_fn, r1_zero_reward_fn
from gsmrl_helpers.gsm8k import load_gsm8k
from gsmrl_helpers.paths import DATA_DIR

pytestmark = pytest.mark.skipif(
    not os.environ.get("GSMRL_DATA") and not (DATA_DIR / "gsm8k").is_dir(),
    reason="GSM8K is neither where GSMRL_DATA says nor in data/gsm8k",
)
N_GOLDS = 8792


@pytest.fixture(scope="module")
def golds() -> list[str]:
    return [problem.gold for split in ("train", "test") for problem in load_gsm8k(split)]


def test_every_way_to_write_a_gold_is_right(golds):
    forms = [len(ways_to_write(integer(gold))) for gold in golds]
    right = [sum(is_equal(form, gold) for form in ways_to_write(integer(gold))) for gold in golds]
    assert right == forms
    assert len(golds) == N_GOLDS and sum(right) == 33 * N_GOLDS


def test_every_near_miss_is_wrong(golds):
    misses = [(str(miss), gold) for gold in golds for miss in near_misses(integer(gold))]
    assert not any(is_equal(miss, gold) for miss, gold in misses)
    n_swapped = len(misses) - 2 * N_GOLDS
    assert n_swapped == sum(len(set(str(abs(integer(gold))))) > 1 for gold in golds) > 5000


def test_both_formats_score_the_gold_and_not_the_next_number(golds):
    scores = {"right": 0.0, "wrong": 0.0}
    for gold in golds:
        for kind, answer in (("right", gold), ("wrong", str(integer(gold) + 1))):
            tagged = r1_zero_reward_fn(f" So. </think> <answer> {answer} </answer>", gold)
            assert tagged == question_only_reward_fn(rf"So \boxed{{{answer}}}.", gold)
            scores[kind] += tagged["reward"]
    assert scores == {"right": N_GOLDS, "wrong": 0}


def integer(gold: str) -> int:
    return int(gold.replace(",", ""))
