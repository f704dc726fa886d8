"""Figures of results: curves of variants over the steps, and what the runs of each end with.

Every seed is shown, faintly; the mean carries the interval μ ± 1.96 σ/√n or the range of the
seeds; the legend says n. A method has one colour and one dash in all figures (`plots.LINES`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from gsmrl_helpers.options import require_choice
from gsmrl_helpers.plots import line, seeds_label
from gsmrl_helpers.results import curves, rows_of, summarize

Band = Literal["interval", "range"]

SEED = {"linestyle": "-", "linewidth": 0.8, "alpha": 0.35}  # how faint a single seed is
BAND_ALPHA = 0.18


def plot_curves(
    ax: Axes,
    table: pd.DataFrame,
    metric: str,
    names: Mapping[str, str] | None = None,
    band: Band = "interval",
) -> None:
    """Draw one metric over the steps for each variant: all seeds, their mean, and a band.

    Args:
        ax: where to draw.
        table: results in the long form.
        metric: the metric; a seed's steps at which it is null are left out.
        names: the variants to draw -> their names in the figure, keys of `plots.LINES`; None draws
            all variants, each under its own name.
        band: "interval" is mean ± 1.96 σ/√n of the steps' values, "range" their min to max; of one
            seed there is neither.

    Raises:
        ValueError: an unknown variant, metric or band, a name without a colour, or runs that have
            not come equally far.
    """
    require_choice("band", band, Band)
    rows, along = rows_of(table, metric), curves(table, metric)
    for variant, name in _names(rows, names).items():
        style = line(name)
        seeds = rows[rows["variant"] == variant].dropna(subset="value").groupby("seed")
        for _, seed in seeds:
            ax.plot(seed["step"], seed["value"], color=style["color"], **SEED)
        mean = along[along["variant"] == variant].sort_values("step")
        ax.plot(mean["step"], mean["mean"], **style, label=seeds_label(name, seeds.ngroups))
        if seeds.ngroups > 1:
            low, high = _band(mean, band)
            ax.fill_between(
                mean["step"], low, high, color=style["color"], alpha=BAND_ALPHA, linewidth=0
            )
    ax.set_xlabel("step")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _band(mean: pd.DataFrame, band: Band) -> tuple[pd.Series, pd.Series]:
    if band == "range":
        return mean["min"], mean["max"]
    return mean["mean"] - mean["half_width"], mean["mean"] + mean["half_width"]


def _names(rows: pd.DataFrame, names: Mapping[str, str] | None) -> Mapping[str, str]:
    """The variants to draw and their names; those asked for must be in the results."""
    variants = list(dict.fromkeys(rows["variant"]))
    if names is None:
        return {variant: variant for variant in variants}
    if unknown := [variant for variant in names if variant not in variants]:
        raise ValueError(
            f"{', '.join(unknown)} is not in these results; allowed: {', '.join(variants)}"
        )
    return names


def plot_finals(ax: Axes, finals: pd.DataFrame, names: Mapping[str, str] | None = None) -> None:
    """Draw what the runs of each variant end with, side by side.

    Left of a variant's place stands a dot for each seed, right of it the mean with
    ± 1.96 σ/√n; below it its name and n.

    Args:
        ax: where to draw.
        finals: of `results.final_values`.
        names: as in `plot_curves`.
    """
    summary = summarize(finals)
    shown = _names(finals, names)
    for place, (variant, name) in enumerate(shown.items()):
        color = line(name)["color"]
        values = finals.loc[finals["variant"] == variant, "value"]
        ax.plot([place - 0.1] * len(values), values, "o", color=color, alpha=0.5, markersize=5)
        _draw_mean(ax, place + 0.1, summary.loc[variant], color)
    labels = [f"{name}\nn = {summary['n'][variant]}" for variant, name in shown.items()]
    ax.set_xticks(range(len(shown)), labels)
    ax.set_xlim(-0.6, len(shown) - 0.4)
    ax.grid(False, axis="x")


def _draw_mean(ax: Axes, x: float, summary: pd.Series, color: object, label: str = "") -> None:
    """The mean, and its interval where there is more than one seed."""
    half = summary["half_width"] if summary["n"] > 1 else None
    style = {"color": color, "capsize": 4, "markersize": 6, "linestyle": "none"}
    ax.errorbar(x, summary["mean"], yerr=half, fmt="D", label=label or None, **style)


def plot_finals_against(
    ax: Axes, finals: pd.DataFrame, x: Mapping[str, float], name: str, xlabel: str
) -> None:
    """Draw what the runs end with against a number that tells the variants apart, on a log axis.

    Args:
        ax: where to draw.
        finals: of `results.final_values`.
        x: variant -> its number, such as its learning rate; above 0.
        name: a key of `plots.LINES`: what the values are, such as "test"; it stands in the legend.
        xlabel: what the number is, with its unit.

    Raises:
        ValueError: an unknown variant, a number that is not above 0, or a name without a colour.
    """
    if wrong := {variant: number for variant, number in x.items() if not number > 0}:
        raise ValueError(f"x={wrong}: a log axis needs numbers above 0")
    style, summary = line(name), summarize(finals)
    order = sorted(_names(finals, x), key=x.__getitem__)
    for variant in order:
        values = finals.loc[finals["variant"] == variant, "value"]
        ax.plot([x[variant]] * len(values), values, "o", color=style["color"], alpha=0.4)
        _draw_mean(ax, x[variant], summary.loc[variant], style["color"])
    numbers = summary["n"][order].tolist()
    few, many = min(numbers), max(numbers)
    label = seeds_label(name, many) if few == many else f"{name} (n = {few} to {many} seeds)"
    ax.plot([x[v] for v in order], summary.loc[order, "mean"], **style, label=label)
    ax.set_xscale("log")
    ax.set_xlabel(xlabel)
