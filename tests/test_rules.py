"""A threshold, and the rule of the learning rates, on results made by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pytest

from gsmrl_helpers.records import LONG_COLUMNS
from gsmrl_helpers.rules import judge_rates, passes, rise_at_end
from tests.test_results import FOUR, finals_of

STEPS = range(1, 101)


def test_a_mean_passes_a_threshold_surely_or_not() -> None:
    # mean .26, t half width 3.1824 · .02273 = .0723
    under, within, over = (passes(finals_of({"standard": FOUR}), bar)[0] for bar in (0.1, 0.2, 0.4))
    assert (under.passed, under.sure) == (True, True)
    assert (within.passed, within.sure) == (True, False)
    assert (over.passed, over.sure) == (False, True)
    assert under.low == pytest.approx(0.26 - 0.0723, abs=5e-5)
    assert str(under) == (
        "standard passes 0.1: its mean test_mean_answer_reward over 4 seeds is 0.260, its 95 % t "
        "interval 0.188 to 0.332 wholly on that side."
    )
    assert "passes 0.2" in str(within) and "on both sides of the threshold" in str(within)
    assert "misses 0.4" in str(over)


def test_one_seed_passes_without_a_spread() -> None:
    [one] = passes(finals_of({"standard": FOUR[:1]}), 0.2)
    assert one.passed and not one.sure and math.isnan(one.low)
    assert "of one seed nothing is known of the spread" in str(one)


def runs(ends: Mapping[str, Sequence[float]], late: Mapping[str, float]) -> pd.DataFrame:
    """Runs of 100 steps that end with the given accuracies; their training batches rise by `late`
    over the second half, with a little noise."""
    noise = np.random.default_rng(0).normal(0, 0.003, (8, 100))
    rows = []
    for variant, values in ends.items():
        for seed, value in enumerate(values):
            line = value + late[variant] * (np.array(STEPS) - 100) / 50 + noise[seed]
            rows += [(variant, seed, s, "train_mean_answer_reward", line[s - 1]) for s in STEPS]
            rows += [
                (variant, seed, 100, f"{x}_mean_answer_reward", value) for x in ("dev", "test")
            ]
    return pd.DataFrame(rows, columns=LONG_COLUMNS)


def test_the_rise_is_that_of_the_second_half() -> None:
    rises = rise_at_end(runs({"a": FOUR, "b": FOUR}, {"a": 0.1, "b": 0.0}))
    assert rises.index.names == ["variant", "seed"] and len(rises) == 8
    np.testing.assert_allclose(rises["a"], 0.1, atol=0.006)
    np.testing.assert_allclose(rises["b"], 0.0, atol=0.006)


def test_a_line_needs_two_values() -> None:
    table = runs({"a": FOUR}, {"a": 0.1})
    with pytest.raises(ValueError, match=r"a, seed 0: 1 values of dev_mean_answer_reward"):
        rise_at_end(table, "dev_mean_answer_reward")


def test_the_rates_are_judged_by_the_rule() -> None:
    ends = {
        "x0.1": [0.12, 0.13, 0.11],
        "x0.2": [0.10, 0.11, 0.12],
        "x1": [0.60, 0.62, 0.61],
        "x3": [0.50, 0.40, 0.45],
        "x20": [0.00, 0.01, 0.02],
    }
    late = {"x0.1": 0.05, "x0.2": 0.0, "x1": 0.1, "x3": 0.0, "x20": 0.0}
    rates = {"x20": 1e-3, "x0.1": 5e-6, "x0.2": 1e-5, "x1": 5e-5, "x3": 1.5e-4}
    judged = judge_rates(runs(ends, late), rates)
    assert judged["word"].to_dict() == {
        "x0.1": "too low",
        "x0.2": "low",
        "x1": "chosen",
        "x3": "",
        "x20": "diverged",
    }
    assert judged["rate"].is_monotonic_increasing
    assert judged.loc["x1", ["dev", "test"]].tolist() == pytest.approx([0.61, 0.61])


def test_of_one_seed_nothing_is_said_to_rise() -> None:
    judged = judge_rates(runs({"a": [0.1], "b": [0.6]}, {"a": 0.05, "b": 0}), {"a": 1.0, "b": 2.0})
    assert judged["word"].to_dict() == {"a": "low", "b": "chosen"}


def test_every_variant_has_a_rate() -> None:
    table = runs({"a": FOUR}, {"a": 0.1})
    with pytest.raises(ValueError, match=r"rates are given of b, the results have a"):
        judge_rates(table, {"b": 1.0})
