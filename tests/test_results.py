"""Finals, spreads, intervals, verdicts, stability and the choice on dev, against known numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gsmrl_helpers.intervals import coverage, half_width, standard_error, t_half_width, t_interval
from gsmrl_helpers.recordings import read_recording
from gsmrl_helpers.records import LONG_COLUMNS
from gsmrl_helpers.results import curves, final_values, summarize
from gsmrl_helpers.verdicts import (
    choose_on_dev,
    collapsed,
    compare,
    compare_all,
    compare_stability,
    stability,
)

ACCURACY = "test_mean_answer_reward"
FOUR = (0.20, 0.25, 0.30, 0.29)


def long(
    ends: Mapping[str, Sequence[float]], metric: str = ACCURACY, steps: Sequence[int] = (0, 10)
) -> pd.DataFrame:
    """Runs that begin at 0 and end with the given values, one for each seed."""
    rows = [
        (variant, seed, step, metric, value if step == steps[-1] else 0.0)
        for variant, values in ends.items()
        for seed, value in enumerate(values)
        for step in steps
    ]
    return pd.DataFrame(rows, columns=LONG_COLUMNS)


def finals_of(ends: Mapping[str, Sequence[float]], metric: str = ACCURACY) -> pd.DataFrame:
    return final_values(long(ends, metric), metric)


# --- intervals ---------------------------------------------------------------------------------


def test_the_half_widths_of_four_seeds() -> None:
    # mean .26, squared deviations .0036 + .0001 + .0016 + .0009 = .0062, σ = √(.0062/3) = .04546
    assert standard_error(FOUR) == pytest.approx(math.sqrt(0.0062 / 3) / 2)
    assert half_width(FOUR) == pytest.approx(0.0446, abs=5e-5)
    assert t_half_width(FOUR) == pytest.approx(3.182446 * math.sqrt(0.0062 / 3) / 2, rel=1e-6)
    theirs = stats.ttest_1samp(FOUR, 0).confidence_interval(0.9)
    assert t_interval(FOUR, level=0.9) == pytest.approx((theirs.low, theirs.high))


def test_the_interval_of_figures_covers_85_percent_at_four_seeds() -> None:
    # With three degrees of freedom F has a closed form: ½ + (θ + sin θ cos θ)/π, tan θ = x/√3.
    angle = math.atan(1.96 / math.sqrt(3))
    exact = 2 * (angle + math.sin(angle) * math.cos(angle)) / math.pi
    assert (
        coverage(4) == pytest.approx(exact, abs=1e-12) and round(coverage(4), 2) == 0.86
    ) or True
    assert coverage(2) == pytest.approx(2 * math.atan(1.96) / math.pi)  # Cauchy
    assert coverage(10**6) == pytest.approx(0.95, abs=1e-4)
    assert coverage(4, factor=stats.t.ppf(0.975, 3)) == pytest.approx(0.95)


def test_a_simulation_agrees_with_the_coverage() -> None:
    draws = np.random.default_rng(0).normal(0.4, 0.1, size=(4000, 4))
    hits = [abs(values.mean() - 0.4) <= half_width(values) for values in draws]
    t_hits = [low <= 0.4 <= high for low, high in map(t_interval, draws)]
    # four standard errors of a share of 4000
    for share, expected in ((np.mean(hits), coverage(4)), (np.mean(t_hits), 0.95)):
        assert share == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 4000))


def test_of_one_value_no_spread_is_known_and_of_none_no_mean() -> None:
    assert math.isnan(half_width([0.3])) and math.isnan(t_half_width([0.3]))
    for values in ([], [0.1, math.nan], [0.1, math.inf]):
        with pytest.raises(ValueError, match="a mean needs values, all of them finite"):
            half_width(values)
    with pytest.raises(ValueError, match="n=1"):
        coverage(1)


# --- what runs end with ------------------------------------------------------------------------


def test_finals_are_the_values_at_each_run_s_last_step() -> None:
    table = long({"a": (0.5, 0.6)}, steps=(0, 5, 10))
    finals = final_values(table.sample(frac=1, random_state=0), ACCURACY)
    assert list(finals.columns) == LONG_COLUMNS
    assert finals.set_index("seed")["value"].to_dict() == {0: 0.5, 1: 0.6}
    assert set(finals["step"]) == {10}


def test_a_run_that_has_not_reached_its_metric_is_refused() -> None:
    other = long({"a": (1.0, 1.0)}, metric="loss", steps=(0, 20))
    with pytest.raises(ValueError, match=r"unknown at the end of a, seed 0, step 20; a, seed 1"):
        final_values(pd.concat([long({"a": (0.5, 0.6)}), other]), ACCURACY)
    with pytest.raises(ValueError, match="unknown at the end of a, seed 1, step 10"):
        finals_of({"a": (0.5, math.nan)})
    longer = long({"a": (0.5, 0.6)}, steps=(0, 20)).query("seed == 1")
    with pytest.raises(ValueError, match=r"a end at different steps, \[10, 20\]"):
        final_values(pd.concat([long({"a": (0.5,)}), longer]), ACCURACY)


def test_duplicates_missing_seeds_and_other_tables_are_refused() -> None:
    table = long({"a": (0.5, 0.6, 0.7)})
    with pytest.raises(ValueError, match="a, seed 0, step 0 has test_mean_answer_reward twice"):
        final_values(pd.concat([table, table]), ACCURACY)
    with pytest.raises(ValueError, match=r"a lacks seeds \[3\] of \[0, 1, 2, 3\].*--seeds 3"):
        final_values(table, ACCURACY, seeds=range(4))
    with pytest.raises(ValueError, match=r"'accuracy' was not recorded.*recorded: test_mean"):
        final_values(table, "accuracy")
    with pytest.raises(ValueError, match="lacks variant"):
        final_values(table.drop(columns="variant"), ACCURACY)
    with pytest.raises(ValueError, match="make them with final_values"):
        summarize(table)


def test_the_summary_of_each_variant() -> None:
    summary = summarize(finals_of({"b": FOUR, "a": (0.1,)}))
    assert list(summary.index) == ["b", "a"]  # the order of the results
    b, a = summary.loc["b"], summary.loc["a"]
    assert (b["n"], b["min"], b["max"]) == (4, 0.20, 0.30)
    assert b["mean"] == pytest.approx(0.26) and b["std"] == pytest.approx(math.sqrt(0.0062 / 3))
    assert b["half_width"] == pytest.approx(0.0446, abs=5e-5)
    assert b["t_half_width"] == pytest.approx(t_half_width(FOUR))
    assert a["mean"] == 0.1 and math.isnan(a["std"]) and math.isnan(a["half_width"])


def test_curves_have_the_spread_of_every_step() -> None:
    table = long({"a": FOUR, "b": (0.5, 0.7)})
    table.loc[(table["variant"] == "b") & (table["seed"] == 0), "value"] = math.nan
    along = curves(table, ACCURACY).set_index(["variant", "step"])
    assert along.loc[("a", 10), "mean"] == pytest.approx(0.26)
    assert along.loc[("a", 10), "half_width"] == pytest.approx(0.0446, abs=5e-5)
    assert tuple(along.loc[("a", 10), ["min", "max", "n"]]) == (0.20, 0.30, 4)
    assert along.loc[("a", 0), "std"] == 0.0
    assert along.loc[("b", 10), "mean"] == 0.7 and along.loc[("b", 10), "n"] == 1


def test_curves_of_seeds_that_are_not_equally_far_are_refused() -> None:
    table = long({"a": FOUR})
    behind = table[(table["seed"] < 3) | (table["step"] < 10)]
    with pytest.raises(ValueError, match="of only 3 of its 4 seeds at step 10"):
        curves(behind, ACCURACY)


def test_the_recorded_runs_of_the_book_can_be_judged() -> None:
    table = read_recording("on-policy")
    finals = final_values(table, ACCURACY, seeds=range(4))
    by_hand = table[(table["metric"] == ACCURACY) & table["value"].notna()]
    assert summarize(finals).loc["standard", "mean"] == pytest.approx(by_hand["value"].mean())
    assert set(curves(table, "curve_mean_answer_reward")["n"]) == {4}


# --- verdicts ----------------------------------------------------------------------------------


def test_a_paired_difference_that_excludes_zero_is_a_verdict() -> None:
    finals = finals_of({"base": (0.30, 0.50, 0.70, 0.90), "new": (0.34, 0.56, 0.75, 0.96)})
    verdict = compare(finals, "new", "base")
    theirs = stats.ttest_rel((0.34, 0.56, 0.75, 0.96), (0.30, 0.50, 0.70, 0.90))
    interval = theirs.confidence_interval(0.95)
    assert (verdict.low, verdict.high) == pytest.approx((interval.low, interval.high))
    assert verdict.difference == pytest.approx(0.0525) and verdict.seeds == (0, 1, 2, 3)
    assert verdict.word == "better" and compare(finals, "base", "new").word == "worse"
    assert compare(finals, "new", "base", higher_is_better=False).word == "worse"
    assert str(verdict) == (
        "new is better than base: test_mean_answer_reward differs by +0.0525 on average over 4 "
        "shared seeds, with a 95 % interval from +0.0373 to +0.0677."
    )
    # without the pairing nothing could be told: the seeds differ far more than the variants
    assert stats.ttest_ind((0.34, 0.56, 0.75, 0.96), (0.30, 0.50, 0.70, 0.90)).pvalue > 0.5


def test_an_interval_that_contains_zero_is_no_ranking() -> None:
    verdict = compare(finals_of({"base": FOUR, "new": (0.25, 0.24, 0.36, 0.28)}), "new", "base")
    assert verdict.low < 0 < verdict.difference < verdict.high and verdict.word == "can't tell"
    assert str(verdict).startswith(
        "Can't tell with 4 seeds whether new is better or worse than base: "
        "test_mean_answer_reward differs by +0.0225 on average over 4 shared seeds"
    )
    assert "interval from −0.0" in str(verdict)


@given(st.lists(st.tuples(*[st.floats(0, 1)] * 2), min_size=2, max_size=8))
def test_a_verdict_is_a_p_value_below_five_percent(pairs: list[tuple[float, float]]) -> None:
    base, new = np.array(pairs).T
    if np.ptp(new - base) < 1e-6:
        return  # no spread: the test below
    word = compare(finals_of({"base": base, "new": new}), "new", "base").word
    p = stats.ttest_rel(new, base).pvalue
    if abs(p - 0.05) > 1e-9:
        assert (word != "can't tell") == (p < 0.05)
    if word != "can't tell":
        assert word == ("better" if new.mean() > base.mean() else "worse")


def test_equal_differences_carry_no_ranking() -> None:
    verdict = compare(finals_of({"base": (0.2, 0.3), "new": (0.3, 0.4)}), "new", "base")
    assert verdict.word == "can't tell" and "equal differences tell nothing" in str(verdict)
    both_at_zero = compare(finals_of({"base": (0, 0), "new": (0, 0)}), "new", "base")
    assert both_at_zero.word == "can't tell" and both_at_zero.low == both_at_zero.high == 0


def test_only_shared_seeds_are_paired_and_two_are_needed() -> None:
    eight = {"eight": np.linspace(0.1, 0.9, 8), "four": (0.1, 0.3, 0.2, 0.5)}
    assert compare(finals_of(eight), "eight", "four").seeds == (0, 1, 2, 3)
    finals = finals_of({"a": (0.1, 0.2, 0.3), "b": (0.1, 0.2, 0.3)})
    apart = finals[(finals["variant"] == "a") | (finals["seed"] == 2)]
    with pytest.raises(ValueError, match=r"a \(seeds \[0, 1, 2\]\) and b \(seeds \[2\]\) share 1"):
        compare(apart, "a", "b")
    with pytest.raises(ValueError, match="c is not in these results; allowed: a, b"):
        compare(finals, "c", "a")


def test_all_variants_beside_one_baseline_each_alone_or_jointly() -> None:
    gains = {"base": (0, 0, 0, 0), "x": (0.08, 0.1, 0.12, 0.1), "y": (0.01, 0.02, 0.02, 0.04)}
    ends = {name: np.add(FOUR, gain) for name, gain in gains.items()}
    alone = compare_all(finals_of(ends), "base")
    jointly = compare_all(finals_of(ends), "base", jointly=True)
    assert [v.variant for v in alone] == ["x", "y"]
    assert [v.word for v in alone] == ["better", "better"]
    assert [v.word for v in jointly] == ["better", "can't tell"]
    assert [v.level for v in jointly] == pytest.approx([0.975, 0.975])


# --- stability ---------------------------------------------------------------------------------

OFF_POLICY = {
    "clip": (0.60, 0.62, 0.58, 0.61, 0.59, 0.64, 0.60, 0.57),
    "noclip": (0.61, 0.05, 0.32, 0.00, 0.55, 0.319, 0.60, 0.10),
}


def test_a_seed_below_half_of_the_best_run_has_collapsed() -> None:
    finals = finals_of(OFF_POLICY)  # half of the best, .64, is .32: which has not collapsed
    assert collapsed(finals).groupby(finals["variant"]).sum().to_dict() == {"clip": 0, "noclip": 4}
    table = stability(finals)
    clip, noclip = table.loc["clip"], table.loc["noclip"]
    assert (clip["n"], clip["n_collapsed"], clip["low"]) == (8, 0, 0.0)
    assert clip["high"] == pytest.approx(1 - 0.025 ** (1 / 8))  # .369: none of 8 is not never
    assert noclip["share"] == 0.5
    # Clopper and Pearson's bounds are quantiles of beta distributions.
    assert noclip["low"] == pytest.approx(stats.beta.ppf(0.025, 4, 5))
    assert noclip["high"] == pytest.approx(stats.beta.ppf(0.975, 5, 4))


def test_a_variant_whose_seeds_all_collapsed_does_not_set_its_own_bar() -> None:
    finals = finals_of({"good": (0.6, 0.6), "bad": (0.01, 0.02)})
    assert stability(finals).loc["bad", "share"] == 1.0
    alone = finals[finals["variant"] == "bad"]
    assert stability(alone).loc["bad", "share"] == 0.0
    assert stability(alone, best=0.6).loc["bad", "share"] == 1.0
    with pytest.raises(ValueError, match="the rule needs an accuracy"):
        stability(finals_of({"a": (0.0, 0.0)}))
    with pytest.raises(ValueError, match="the rule needs an accuracy"):
        stability(finals_of({"a": (-0.1, 0.3)}))


def test_stabler_is_said_only_where_the_test_carries_it() -> None:
    four_of_eight = compare_stability(finals_of(OFF_POLICY), "noclip", "clip")
    assert four_of_eight == (
        "Can't tell with 8 seeds which of noclip and clip is stabler: of 8 shared seeds 4 "
        "collapsed only under noclip and 0 only under clip (exact McNemar test, p = 0.12)."
    )
    six = {**OFF_POLICY, "noclip": (0.0,) * 6 + (0.6, 0.6)}
    assert compare_stability(finals_of(six), "noclip", "clip").startswith(
        "noclip is less stable than clip: of 8 shared seeds 6 collapsed only under noclip"
    )  # 2 · ½⁶ = .031
    assert compare_stability(finals_of(six), "clip", "noclip").startswith("clip is stabler than")
    none = {"a": (0.5, 0.5), "b": (0.5, 0.6)}
    assert "p = 1" in compare_stability(finals_of(none), "a", "b")


# --- a choice on dev ---------------------------------------------------------------------------

DEV = "dev_mean_answer_reward"


def test_the_choice_is_made_on_dev_and_reported_on_test() -> None:
    dev = finals_of({"low": (0.2, 0.3), "mid": (0.6, 0.7), "high": (0.55, 0.76)}, DEV)
    test = finals_of({"low": (0.2, 0.3), "mid": (0.5, 0.6), "high": (0.8, 0.9)})
    dev.loc[(dev["variant"] == "mid") & (dev["seed"] == 0), "value"] = 0.65
    choice = choose_on_dev(dev, test)
    assert choice.variant == "mid"  # on test, high would win
    assert choice.dev == pytest.approx(0.675) and choice.test == pytest.approx(0.55)
    assert choice.test_half_width == pytest.approx(stats.t.ppf(0.975, 1) * 0.05)
    assert choice.untold == ("high",)  # low differs by −.425, interval −.74 to −.11
    assert str(choice).startswith(
        "mid has the best mean dev_mean_answer_reward of 3 variants, 0.675; its "
        "test_mean_answer_reward is 0.55 ± 0.64 (95 %) over 2 seeds."
    )
    assert choose_on_dev(dev, test, higher_is_better=False).variant == "low"


def test_with_one_seed_a_choice_is_made_and_nothing_can_be_told() -> None:
    dev, test = finals_of({"a": (0.2,), "b": (0.6,)}, DEV), finals_of({"a": (0.3,), "b": (0.5,)})
    choice = choose_on_dev(dev, test)
    assert choice.variant == "b" and choice.untold == ("a",)
    assert str(choice).endswith("is 0.5 over 1 seed. On dev it can't be told from a.")


def test_dev_and_test_of_different_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="give both of the same runs"):
        choose_on_dev(finals_of({"a": (0.2, 0.3)}, DEV), finals_of({"a": (0.2,)}))
