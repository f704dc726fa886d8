"""The catalogue's rules for single experiments, in code: a threshold, and what a rate has done.

`catalogue` says which of them stood before the runs that they judge. Where a rule leaves a number
open, as "still rising at the end" does, it is set here and said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gsmrl_helpers.intervals import FEWEST, t_interval
from gsmrl_helpers.results import final_values, rows_of, summarize
from gsmrl_helpers.verdicts import COLLAPSE_FRACTION, choose_on_dev

ACCURACY = "mean_answer_reward"  # after a split's name: the share of right answers

# --- a threshold ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Passed:
    """Whether a variant's mean final value passes a threshold; as text, a sentence.

    Attributes:
        low, high: the mean's t interval at 95 %; NaN with one seed.
        passed: the mean is at least the threshold.
    """

    variant: str
    metric: str
    threshold: float
    mean: float
    low: float
    high: float
    n: int
    passed: bool

    @property
    def sure(self) -> bool:
        """Whether the whole interval lies on the mean's side of the threshold."""
        return self.low >= self.threshold if self.passed else self.high < self.threshold

    def __str__(self) -> str:
        verb = "passes" if self.passed else "misses"
        seeds = f"{self.n} seed{'s' * (self.n > 1)}"
        said = f"{self.variant} {verb} {self.threshold:g}: its mean {self.metric} over {seeds} is "
        if self.n < FEWEST:
            return f"{said}{self.mean:.3f}, and of one seed nothing is known of the spread."
        where = "wholly on that side" if self.sure else "on both sides of the threshold"
        return (
            f"{said}{self.mean:.3f}, its 95 % t interval {self.low:.3f} to {self.high:.3f} {where}."
        )


def passes(finals: pd.DataFrame, threshold: float) -> list[Passed]:
    """Each variant's mean final value beside a threshold, in the order of the results.

    Args:
        finals: of `results.final_values`, of a metric that is better where higher.
        threshold: what the mean has to reach.
    """
    metric = finals["metric"].iloc[0]
    return [
        Passed(
            variant=variant,
            metric=metric,
            threshold=threshold,
            mean=float(row["mean"]),
            low=float(row["mean"] - row["t_half_width"]),
            high=float(row["mean"] + row["t_half_width"]),
            n=int(row["n"]),
            passed=bool(row["mean"] >= threshold),
        )
        for variant, row in summarize(finals).iterrows()
    ]


# --- learning rates -------------------------------------------------------------------------------


def rise_at_end(table: pd.DataFrame, metric: str = f"train_{ACCURACY}") -> pd.Series:
    """How far a metric rises over the second half of each run, along a straight line fitted to it.

    The training batches' accuracy serves for that where no problem comes twice: a value a step,
    and of problems that no update has seen.

    Returns:
        the rise in units of the metric, indexed by (variant, seed).

    Raises:
        ValueError: see `results.rows_of`; or a run has fewer than two values there.
    """
    rows = rows_of(table, metric).dropna(subset="value")
    rises = {}
    for (variant, seed), run in rows.groupby(["variant", "seed"], sort=False):
        last = run["step"].max()
        late = run[run["step"] > last / 2]
        if len(late) < 2:
            raise ValueError(
                f"{variant}, seed {seed}: {len(late)} values of {metric} after step {last / 2:g} "
                "give no line; choose a metric that is known at more steps"
            )
        rises[variant, seed] = np.polyfit(late["step"], late["value"], 1)[0] * last / 2
    index = pd.MultiIndex.from_tuples(rises, names=["variant", "seed"])
    return pd.Series(list(rises.values()), index=index, name="rise")


def judge_rates(table: pd.DataFrame, rates: Mapping[str, float]) -> pd.DataFrame:
    """The rule of the experiment "learning-rate", for each variant.

    The rate with the best mean final dev accuracy is "chosen". Below half of its mean test accuracy
    a higher rate has "diverged"; a lower one is "too low" if it still rises at the end: the mean of
    `rise_at_end` is above 0 by its t interval at 95 %. Else it is "low": of one seed no interval
    says that it rises.

    Args:
        table: results in the long form.
        rates: variant -> learning rate, for each variant of the table.

    Returns:
        one row a variant, in the order of the rates: rate, dev, test (mean final accuracies), rise,
        rise_low (the mean, and the lower end of its interval), word ("" where the rule has none).
    """
    finals = {split: final_values(table, f"{split}_{ACCURACY}") for split in ("dev", "test")}
    if set(rates) != set(finals["dev"]["variant"]):
        raise ValueError(
            f"rates are given of {', '.join(rates)}, the results have "
            f"{', '.join(dict.fromkeys(finals['dev']['variant']))}: give one to each"
        )
    chosen = choose_on_dev(finals["dev"], finals["test"]).variant
    rises = rise_at_end(table).groupby("variant", sort=False)
    judged = pd.DataFrame(
        {
            "rate": pd.Series(rates),
            "dev": summarize(finals["dev"])["mean"],
            "test": summarize(finals["test"])["mean"],
            "rise": rises.mean(),
            "rise_low": rises.apply(lambda values: t_interval(values)[0]),
        }
    ).sort_values("rate")
    words = {variant: _word(row, judged.loc[chosen]) for variant, row in judged.iterrows()}
    return judged.assign(word=pd.Series({**words, chosen: "chosen"})).rename_axis("variant")


def _word(row: pd.Series, chosen: pd.Series) -> str:
    if row["test"] >= COLLAPSE_FRACTION * chosen["test"]:
        return ""
    if row["rate"] > chosen["rate"]:
        return "diverged"
    return "too low" if row["rise_low"] > 0 else "low"
