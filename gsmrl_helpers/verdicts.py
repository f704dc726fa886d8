"""Verdicts over seeds: better, worse, can't tell; how many seeds collapsed; a choice made on dev.

Everything takes finals (`results.final_values`). A difference is stated only where its interval
excludes 0, or where a test at the same level rejects that there is none; else the sentence says
that it can't be told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from gsmrl_helpers.intervals import FEWEST, t_interval
from gsmrl_helpers.results import by_variant, summarize

Word = Literal["better", "worse", "can't tell"]

# The rule of stability, written before the runs: a seed has collapsed whose final accuracy is
# below this fraction of the best final accuracy among all compared runs.
COLLAPSE_FRACTION = 0.5


@dataclass(frozen=True)
class Verdict:
    """What the seeds say of a variant beside a baseline; as text, a sentence.

    Attributes:
        seeds: those that both have.
        difference: mean over these seeds of variant − baseline, in units of the metric.
        low, high: its t interval at `level`.
        word: "better" or "worse" where the interval excludes 0, else "can't tell".
    """

    metric: str
    variant: str
    baseline: str
    seeds: tuple[int, ...]
    difference: float
    low: float
    high: float
    level: float
    word: Word

    def __str__(self) -> str:
        n = len(self.seeds)
        numbers = (
            f"{self.metric} differs by {_signed(self.difference)} on average over {n} shared "
            f"seeds, with a {100 * self.level:.3g} % interval from {_signed(self.low)} to "
            f"{_signed(self.high)}"
        )
        if self.word != "can't tell":
            return f"{self.variant} is {self.word} than {self.baseline}: {numbers}."
        same = "" if self.low <= 0 <= self.high else "; equal differences tell nothing of a spread"
        return (
            f"Can't tell with {n} seeds whether {self.variant} is better or worse than "
            f"{self.baseline}: {numbers}{same}."
        )


def _signed(number: float) -> str:
    return f"{number:+.3g}".replace("-", "−")


def compare(
    finals: pd.DataFrame,
    variant: str,
    baseline: str,
    *,
    higher_is_better: bool = True,
    level: float = 0.95,
) -> Verdict:
    """The paired difference of two variants over the seeds that both have, with its t interval.

    Seeds are paired since runs of one seed start alike and meet the same problems in the same
    order; what they share drops out of the difference. Differences that are all equal, and not 0,
    have no spread to judge by: "can't tell".

    Raises:
        ValueError: an unknown variant, or fewer than two shared seeds.
    """
    differences = paired_differences(finals, variant, baseline)
    low, high = t_interval(differences, level)
    word: Word = "can't tell"
    if not (low <= 0 <= high or np.allclose(differences, differences.iloc[0], rtol=1e-9, atol=0)):
        word = "better" if (low > 0) == higher_is_better else "worse"
    return Verdict(
        metric=finals["metric"].iloc[0],
        variant=variant,
        baseline=baseline,
        seeds=tuple(map(int, differences.index)),
        difference=float(differences.mean()),
        low=low,
        high=high,
        level=level,
        word=word,
    )


def paired_differences(finals: pd.DataFrame, variant: str, baseline: str) -> pd.Series:
    """variant − baseline for each seed that both have, indexed by seed; see `compare`."""
    values = by_variant(finals)
    if unknown := [name for name in (variant, baseline) if name not in values]:
        raise ValueError(
            f"{', '.join(unknown)} is not in these results; allowed: {', '.join(values)}"
        )
    differences = (values[variant] - values[baseline]).dropna()
    if len(differences) < FEWEST:
        raise ValueError(
            f"{variant} (seeds {list(values[variant].index)}) and {baseline} (seeds "
            f"{list(values[baseline].index)}) share {len(differences)} seeds: run both with at "
            f"least {FEWEST} common ones"
        )
    return differences


def compare_all(
    finals: pd.DataFrame,
    baseline: str,
    *,
    higher_is_better: bool = True,
    level: float = 0.95,
    jointly: bool = False,
) -> list[Verdict]:
    """Every other variant beside the baseline, in the order of the results.

    Args:
        jointly: widen the m intervals to 1 − (1 − level) / m each (Bonferroni), so that all of
            them hold together with chance `level`; else each holds for itself, and among many
            comparisons some will err.
    """
    others = [name for name in by_variant(finals) if name != baseline]
    each = 1 - (1 - level) / len(others) if jointly and others else level
    options = {"higher_is_better": higher_is_better, "level": each}
    return [compare(finals, variant, baseline, **options) for variant in others]


# --- stability -----------------------------------------------------------------------------------


def collapsed(finals: pd.DataFrame, best: float | None = None) -> pd.Series:
    """The rule of stability: a seed has collapsed if it ends below half of the best.

    Its final accuracy is below `COLLAPSE_FRACTION` of the best final accuracy of any run that is
    compared, of whatever variant: a variant whose seeds all collapsed must not set its own bar.

    Args:
        finals: of an accuracy, or of another metric that is at least 0 and better where higher.
        best: the accuracy to compare with, where the best run is not among the finals.

    Returns:
        bool, indexed like `finals`.

    Raises:
        ValueError: no accuracy above 0 to compare with, or a negative value.
    """
    by_variant(finals)  # refuses what are no finals
    best = finals["value"].max() if best is None else best
    if not (best > 0 and (finals["value"] >= 0).all()):
        raise ValueError(
            f"final values from {finals['value'].min()} to {best}: the rule needs an accuracy, at "
            "least 0 everywhere and above 0 for the best run"
        )
    return finals["value"] < COLLAPSE_FRACTION * best


def stability(finals: pd.DataFrame, best: float | None = None, level: float = 0.95) -> pd.DataFrame:
    """One row a variant: n, n_collapsed, their share, and its exact interval low to high.

    The interval is Clopper and Pearson's (1934): it holds at least with chance `level`, also where
    no seed or every seed collapsed. Of 0 in 8 it says "up to 37 %", not "never".
    """
    rows = finals.assign(collapsed=collapsed(finals, best))
    table = rows.groupby("variant", sort=False)["collapsed"].agg(n="size", n_collapsed="sum")
    intervals = [
        binomtest(int(k), int(n)).proportion_ci(level, method="exact")
        for n, k in zip(table["n"], table["n_collapsed"], strict=True)
    ]
    return table.assign(
        share=table["n_collapsed"] / table["n"],
        low=[interval.low for interval in intervals],
        high=[interval.high for interval in intervals],
    )


def compare_stability(
    finals: pd.DataFrame,
    variant: str,
    baseline: str,
    best: float | None = None,
    level: float = 0.95,
) -> str:
    """A sentence: does one of two variants collapse on more seeds than the other?

    Only seeds on which one collapsed and the other did not tell them apart; were both as stable,
    each of these would fall to either side like a coin (McNemar, 1947, the exact test). It takes
    six such seeds, all on one side, before 95 % is reached.

    Raises:
        ValueError: see `compare` and `collapsed`.
    """
    rows = finals.assign(value=collapsed(finals, best).astype(float))
    differences = paired_differences(rows, variant, baseline)
    n, only_variant, only_baseline = (
        len(differences),
        int((differences > 0).sum()),
        int((differences < 0).sum()),
    )
    apart = only_variant + only_baseline
    p = binomtest(only_variant, apart).pvalue if apart else 1.0
    numbers = (
        f"of {n} shared seeds {only_variant} collapsed only under {variant} and {only_baseline} "
        f"only under {baseline} (exact McNemar test, p = {p:.2g})"
    )
    if p >= 1 - level:
        return f"Can't tell with {n} seeds which of {variant} and {baseline} is stabler: {numbers}."
    word = "less stable" if only_variant > only_baseline else "stabler"
    return f"{variant} is {word} than {baseline}: {numbers}."


# --- a choice ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The variant chosen on dev, and what it is on test; as text, a sentence.

    Attributes:
        dev, test: mean final values of the chosen variant.
        test_half_width: t half width of `test` at 95 %; NaN with one seed.
        n: its seeds.
        untold: the other variants that dev can't tell from it, by `compare`; with one seed, all.
    """

    variant: str
    n_variants: int
    dev_metric: str
    dev: float
    test_metric: str
    test: float
    test_half_width: float
    n: int
    untold: tuple[str, ...]

    def __str__(self) -> str:
        spread = f" ± {self.test_half_width:.2g} (95 %)" if self.n >= FEWEST else ""
        untold = f" On dev it can't be told from {', '.join(self.untold)}." if self.untold else ""
        return (
            f"{self.variant} has the best mean {self.dev_metric} of {self.n_variants} variants, "
            f"{self.dev:.3g}; its {self.test_metric} is {self.test:.3g}{spread} over {self.n} "
            f"seed{'s' * (self.n > 1)}.{untold}"
        )


def choose_on_dev(
    dev: pd.DataFrame, test: pd.DataFrame, *, higher_is_better: bool = True
) -> Choice:
    """The variant with the best mean final dev value, and its values on test.

    Test has no say in the choice: the best of several values on test would be too good, being in
    part the luckiest. Of equal means the first variant is taken.

    Args:
        dev, test: finals of the same runs, of a dev and of a test metric.

    Raises:
        ValueError: the two are not of the same runs.
    """
    on_dev, on_test = by_variant(dev), by_variant(test)
    runs = [{name: list(v.index) for name, v in values.items()} for values in (on_dev, on_test)]
    if runs[0] != runs[1]:
        raise ValueError(f"dev has the seeds {runs[0]}, test {runs[1]}: give both of the same runs")
    means = summarize(dev)["mean"]
    variant = means.idxmax() if higher_is_better else means.idxmin()
    chosen = summarize(test).loc[variant]
    return Choice(
        variant=variant,
        n_variants=len(means),
        dev_metric=dev["metric"].iloc[0],
        dev=float(means[variant]),
        test_metric=test["metric"].iloc[0],
        test=float(chosen["mean"]),
        test_half_width=float(chosen["t_half_width"]),
        n=int(chosen["n"]),
        untold=tuple(name for name in on_dev if _untold(dev, name, variant)),
    )


def _untold(finals: pd.DataFrame, name: str, chosen: str) -> bool:
    if name == chosen:
        return False
    seeds = by_variant(finals)
    if len(seeds[name].index.intersection(seeds[chosen].index)) < FEWEST:
        return True
    return compare(finals, name, chosen).word == "can't tell"
