"""Figures of all that the runs of one variant logged: a row for each group of metrics, both bands.

On the left the mean with μ ± 1.96 σ/√n, on the right the same mean with the range of the seeds.
What was never computed is said to be "not recorded": it is not drawn as 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gsmrl_helpers.plots import Panel
from gsmrl_helpers.result_plots import Band, plot_curves

BANDS: dict[Band, str] = {"interval": "mean ± 1.96 σ/√n", "range": "mean, min to max"}
ROW_INCHES = 2.35


def is_recorded(table: pd.DataFrame, metric: str) -> bool:
    """Whether a metric was computed at any step of any run; an absent or null one was not.

    Args:
        table: results in the long form.
        metric: its name.
    """
    values = table.loc[table["metric"] == metric, "value"].to_numpy(dtype=float)
    return bool(np.isfinite(values).any())


def plot_panels(table: pd.DataFrame, variant: str, panels: Sequence[Panel]) -> Figure:
    """Draw a variant's metrics over the steps, one row a panel, one column a band.

    Args:
        table: results in the long form.
        variant: the variant to draw.
        panels: title, unit, and names in the figure (keys of `plots.LINES`) -> metrics, each.

    Raises:
        ValueError: the variant is not in the table; or see `result_plots.plot_curves`.
    """
    if variant not in set(table["variant"]):
        raise ValueError(
            f"variant={variant!r} is not in these results; allowed: "
            f"{', '.join(dict.fromkeys(table['variant']))}"
        )
    runs = table[table["variant"] == variant]
    figure, axes = plt.subplots(
        *(len(panels), len(BANDS)),
        figsize=(8.6, ROW_INCHES * len(panels) + 0.3),
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for row, (title, unit, metrics) in zip(axes, panels, strict=True):
        for ax, band in zip(row, BANDS, strict=True):
            _draw_panel(ax, runs, variant, metrics, band)
            ax.set_title(f"{title}: {BANDS[band]}" if ax is row[0] else BANDS[band])
            ax.label_outer()
        row[0].set_ylabel(unit)
    return figure


def _draw_panel(ax: Axes, runs: pd.DataFrame, variant: str, metrics: dict, band: Band) -> None:
    recorded = {name: metric for name, metric in metrics.items() if is_recorded(runs, metric)}
    for name, metric in recorded.items():
        plot_curves(ax, runs, metric, {variant: name}, band)
    if recorded:
        ax.legend(loc="best")
    else:
        ax.set_yticks([])
        ax.set_xlabel("step")
    if missing := [metric for metric in metrics.values() if metric not in recorded.values()]:
        text = f"not recorded: {', '.join(missing)}"
        ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center")
