"""Results over seeds: what each run ends with, and the spread at its end and along the way.

Results come in the long form `variant, seed, step, metric, value`, of any profile. What the runs
end with, their finals, are rows of that form too: one metric, one row a (variant, seed).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from gsmrl_helpers.intervals import half_width, t_half_width
from gsmrl_helpers.records import LONG_COLUMNS

RUN = ["variant", "seed"]


def rows_of(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows of one metric, after a check of the whole table.

    Raises:
        ValueError: columns are missing, a row stands there twice, or nothing has the metric.
    """
    if absent := [column for column in LONG_COLUMNS if column not in table]:
        raise ValueError(
            f"the table lacks {', '.join(absent)}; it has {', '.join(map(str, table.columns))}: "
            f"give the long form {', '.join(LONG_COLUMNS)}, as read_recording returns it"
        )
    rows = table[table["metric"] == metric]
    if rows.empty:
        known = ", ".join(sorted(set(table["metric"])))
        raise ValueError(f"metric={metric!r} was not recorded in these results; recorded: {known}")
    if (twice := rows.duplicated([*RUN, "step"])).any():
        row = rows[twice].iloc[0]
        raise ValueError(
            f"{row['variant']}, seed {row['seed']}, step {row['step']} has {metric} twice: were "
            "two recordings of one run joined? Keep one"
        )
    return rows


def final_values(
    table: pd.DataFrame, metric: str, seeds: Iterable[int] | None = None
) -> pd.DataFrame:
    """What each run ends with: the metric's row at the run's last step, in the long form.

    Args:
        table: results in the long form, all of their metrics.
        metric: such as "test_mean_answer_reward", the share of right answers on test.
        seeds: those that every variant must have; None accepts those that are there.

    Raises:
        ValueError: see `rows_of`; or a run has no value at its last step, the seeds of a variant
            end at different steps, or a seed is missing.
    """
    rows = rows_of(table, metric)
    last = table.groupby(RUN, sort=False, as_index=False)["step"].max()
    finals = last.merge(rows, how="left", on=[*RUN, "step"])
    unknown = finals[~np.isfinite(finals["value"])]
    if not unknown.empty:
        raise ValueError(
            f"{metric} is unknown at the end of {_runs(unknown)}: finish these runs, or choose a "
            "metric that is known at their last step"
        )
    for variant, steps in finals.groupby("variant", sort=False)["step"]:
        if steps.nunique() > 1:
            raise ValueError(
                f"the seeds of {variant} end at different steps, {sorted(set(steps))}: finish them"
            )
    _require_seeds(finals, seeds)
    return finals[LONG_COLUMNS]


def _runs(rows: pd.DataFrame) -> str:
    return "; ".join(f"{r.variant}, seed {r.seed}, step {r.step}" for r in rows.itertuples())


def _require_seeds(finals: pd.DataFrame, seeds: Iterable[int] | None) -> None:
    wanted = set(seeds or ())
    for variant, present in finals.groupby("variant", sort=False)["seed"]:
        if missing := sorted(wanted - set(present)):
            raise ValueError(
                f"{variant} lacks seeds {missing} of {sorted(wanted)}: run them (gsmrl run ... "
                f"--seeds {','.join(map(str, missing))}), or ask for those that are there"
            )


def by_variant(finals: pd.DataFrame) -> dict[str, pd.Series]:
    """Each variant's final values, indexed by seed.

    Raises:
        ValueError: these are no finals: several metrics, several rows of a run, an unknown value.
    """
    metrics = sorted(set(finals["metric"]))
    if len(metrics) != 1 or finals.duplicated(RUN).any() or not np.isfinite(finals["value"]).all():
        raise ValueError(
            f"finals have one metric, here {metrics}, one row for each variant and seed, and "
            "finite values: make them with final_values"
        )
    return {
        variant: rows.set_index("seed")["value"].sort_index()
        for variant, rows in finals.groupby("variant", sort=False)
    }


def summarize(finals: pd.DataFrame) -> pd.DataFrame:
    """One row a variant, in the order of the results: n, mean, std (with n − 1), the half widths
    of both intervals, min, max. The spread of one seed is NaN: unknown, not 0."""
    return pd.DataFrame(
        [{"variant": variant, **_spread(values)} for variant, values in by_variant(finals).items()]
    ).set_index("variant")


def curves(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The same for each variant and step at which the metric is known.

    A null means that a seed did not define the metric there, as the length of right answers where
    none was right: it is left out, and n counts the others.

    Raises:
        ValueError: see `rows_of`; or a seed has no row at a step where another of its variant has.
    """
    rows = rows_of(table, metric)
    for variant, group in rows.groupby("variant", sort=False):
        seeds_at = group.groupby("step")["seed"].nunique()
        if len(short := seeds_at[seeds_at < group["seed"].nunique()]):
            raise ValueError(
                f"{variant} has {metric} of only {short.iloc[0]} of its "
                f"{group['seed'].nunique()} seeds at step {short.index[0]}: finish the others"
            )
    known = rows[np.isfinite(rows["value"])]
    return pd.DataFrame(
        [
            {"variant": variant, "step": step, **_spread(group["value"])}
            for (variant, step), group in known.groupby(["variant", "step"], sort=False)
        ]
    )


def binned(table: pd.DataFrame, width: int = 10) -> pd.DataFrame:
    """The runs' means over each `width` training steps, for figures of what jumps at every step.

    Args:
        table: results in the long form.
        width: steps 1 to width are the first bin; step 0 trains on nothing and is left out.

    Returns:
        The long form, each bin at the middle of its steps; nulls are left out of a mean, which is
        null where no step is known.

    Raises:
        ValueError: a width below 1.
    """
    if width < 1:
        raise ValueError(f"width={width}: a bin needs at least 1 step")
    rows = table[table["step"] > 0]
    middle = (rows["step"] - 1) // width * width + (width + 1) / 2
    keys = [*RUN, "step", "metric"]
    means = rows.assign(step=middle).groupby(keys, sort=False, as_index=False)["value"].mean()
    return means[LONG_COLUMNS]


def _spread(values: pd.Series) -> dict[str, float]:
    return {
        "n": len(values),
        "mean": values.mean(),
        "std": values.std(ddof=1),
        "half_width": half_width(values),
        "t_half_width": t_half_width(values),
        "min": values.min(),
        "max": values.max(),
    }
