"""Figures: every seed, the mean with its interval, colours and dashes that tell methods apart."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from gsmrl_helpers.plots import LINES, RUN_PANELS, plot_metric, plot_run, t_interval, use_style
from gsmrl_helpers.records import LONG_COLUMNS


def table(n_seeds: int = 4, metrics: tuple[str, ...] = ("grad_norm",)) -> pd.DataFrame:
    rows = [
        ("standard", seed, step, metric, float(seed + step))
        for seed in range(n_seeds)
        for step in range(3)
        for metric in metrics
    ]
    return pd.DataFrame(rows, columns=LONG_COLUMNS)


@pytest.fixture
def ax():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def test_every_seed_is_drawn_and_the_mean_has_its_t_interval(ax: plt.Axes) -> None:
    plot_metric(ax, table(), "grad_norm", "train")
    assert len(ax.lines) == 5 and ax.get_legend_handles_labels()[1] == ["train (n = 4 seeds)"]
    np.testing.assert_allclose(ax.lines[-1].get_ydata(), [1.5, 2.5, 3.5])
    lowest = ax.collections[0].get_paths()[0].vertices[:, 1].min()
    assert lowest == pytest.approx(t_interval(pd.Series([0.0, 1.0, 2.0, 3.0]))[0])


def test_one_seed_has_a_line_and_no_interval(ax: plt.Axes) -> None:
    plot_metric(ax, table(1), "grad_norm", "train")
    assert not ax.collections and ax.get_legend_handles_labels()[1] == ["train (n = 1 seed)"]


def test_what_was_not_recorded_or_has_no_colour_is_refused(ax: plt.Axes) -> None:
    empty = table().assign(value=np.nan)
    with pytest.raises(ValueError, match="'grad_norm' was not recorded"):
        plot_metric(ax, empty, "grad_norm", "train")
    with pytest.raises(ValueError, match="allowed: train, curve"):
        plot_metric(ax, table(), "grad_norm", "validation")


def test_no_two_lines_share_a_dash_and_colour_and_each_panel_s_differ() -> None:
    by_meaning = [LINES[name] for name in ("train", "curve", "test", "all", "right", "wrong")]
    assert len(set(by_meaning)) == len(by_meaning)
    assert len({LINES[name] for name in ("too low", "as tuned", "too high")}) == 3
    for _, _, metrics in RUN_PANELS:
        dashes = [LINES[name][1] for name in metrics]
        assert len(set(dashes)) == len(dashes), "two lines of a panel look the same in grey"


def test_a_run_has_a_panel_for_each_group_of_metrics() -> None:
    use_style()
    metrics = tuple(m for _, _, names in RUN_PANELS for m in names.values())
    figure = plot_run(table(2, metrics))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [title for title, _, _ in RUN_PANELS]
    assert all(axes.get_ylabel() and axes.get_xlabel() == "step" for axes in figure.axes)
    plt.close(figure)


def test_the_t_interval() -> None:
    # Four values 0, 1, 2, 3: mean 1.5, standard error .6455, t quantile (3 degrees) 3.1824.
    assert t_interval(pd.Series([0.0, 1.0, 2.0, 3.0])) == pytest.approx((-0.5543, 3.5543), abs=1e-3)
