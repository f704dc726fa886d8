"""Figures of results: every seed, the mean, its band, n, one colour and dash for each method."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import same_color, to_rgb

from gsmrl_helpers.plots import LINES
from gsmrl_helpers.result_plots import plot_curves, plot_finals, plot_finals_against
from tests.test_results import ACCURACY, FOUR, finals_of, long

HALF_WIDTH = 0.0446  # of the four


@pytest.fixture
def ax() -> Iterator[plt.Axes]:
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def band_at(ax: plt.Axes, band: int, step: float) -> tuple[float, float]:
    """Lowest and highest corner of a band at a step."""
    corners = ax.collections[band].get_paths()[0].vertices
    there = corners[corners[:, 0] == step, 1]
    return there.min(), there.max()


def test_seeds_are_faint_and_the_mean_has_its_interval_and_n(ax: plt.Axes) -> None:
    ax.set_prop_cycle(color=["k", "k"], linestyle=["--", ":"])  # as the course's style has one
    plot_curves(ax, long({"GRPO": FOUR}), ACCURACY)
    *seeds, mean = ax.lines
    assert [tuple(seed.get_ydata()) for seed in seeds] == [(0, value) for value in FOUR]
    assert all(seed.get_alpha() < 0.5 and seed.get_linestyle() == "-" for seed in seeds)
    assert mean.get_alpha() is None
    np.testing.assert_allclose(mean.get_ydata(), [0, 0.26])
    assert band_at(ax, 0, 10) == pytest.approx((0.26 - HALF_WIDTH, 0.26 + HALF_WIDTH), abs=1e-4)
    assert ax.get_legend_handles_labels()[1] == ["GRPO (n = 4 seeds)"]
    assert ax.get_xlabel() == "step"


def test_the_other_band_is_the_range_of_the_seeds(ax: plt.Axes) -> None:
    plot_curves(ax, long({"GRPO": FOUR}), ACCURACY, band="range")
    assert band_at(ax, 0, 10) == (0.20, 0.30)
    with pytest.raises(ValueError, match="band='std' is unknown: allowed are 'interval', 'range'"):
        plot_curves(ax, long({"GRPO": FOUR}), ACCURACY, band="std")


def test_one_seed_has_no_band(ax: plt.Axes) -> None:
    plot_curves(ax, long({"GRPO": (0.3,)}), ACCURACY)
    assert not ax.collections and ax.get_legend_handles_labels()[1] == ["GRPO (n = 1 seed)"]


def test_a_method_looks_the_same_in_every_figure_and_unlike_the_others(ax: plt.Axes) -> None:
    table = long({"MaxRL": FOUR, "x1": FOUR, "RFT": FOUR})
    plot_curves(ax, table, ACCURACY, names={"x1": "as tuned", "MaxRL": "MaxRL"})
    handles, labels = ax.get_legend_handles_labels()
    assert labels == ["as tuned (n = 4 seeds)", "MaxRL (n = 4 seeds)"]
    for handle, name in zip(handles, ("as tuned", "MaxRL"), strict=True):
        assert same_color(handle.get_color(), LINES[name][0])
        assert handle.get_linestyle() == LINES[name][1]
    plot_finals(ax, finals_of({"MaxRL": FOUR}))
    assert same_color(ax.lines[-1].get_color(), LINES["MaxRL"][0])


@pytest.mark.parametrize(
    "names",
    [
        ("GRPO", "GRPO_constant", "Dr_GRPO", "RFT", "MaxRL"),
        ("naive", "noclip", "clip", "gspo", "cispo"),
        ("too low", "as tuned", "too high"),
    ],
)
def test_methods_of_one_figure_can_be_told_apart_in_grey(names: tuple[str, ...]) -> None:
    assert len({LINES[name][1] for name in names}) == len(names)
    assert len({to_rgb(LINES[name][0]) for name in names}) == len(names)


def test_what_is_unknown_is_refused(ax: plt.Axes) -> None:
    with pytest.raises(ValueError, match="b is not in these results; allowed: a"):
        plot_curves(ax, long({"a": FOUR}), ACCURACY, names={"b": "GRPO"})
    with pytest.raises(ValueError, match="'a' has no colour"):
        plot_curves(ax, long({"a": FOUR}), ACCURACY)
    with pytest.raises(ValueError, match="'loss' was not recorded"):
        plot_curves(ax, long({"GRPO": FOUR}), "loss")


def test_finals_have_a_dot_for_each_seed_and_the_mean_with_its_interval(ax: plt.Axes) -> None:
    plot_finals(ax, finals_of({"GRPO": FOUR, "RFT": (0.1,)}))
    seeds, mean = ax.lines[0], ax.containers[0]
    assert tuple(seeds.get_ydata()) == FOUR and seeds.get_marker() == "o"
    assert seeds.get_xdata()[0] < 0 < mean.lines[0].get_xdata()[0]  # side by side
    np.testing.assert_allclose(mean.lines[0].get_ydata(orig=False), [0.26])
    (bar,) = mean.lines[2][0].get_segments()
    np.testing.assert_allclose(bar[:, 1], [0.26 - HALF_WIDTH, 0.26 + HALF_WIDTH], atol=1e-4)
    assert not ax.containers[1].lines[2]  # one seed has no interval
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["GRPO\nn = 4", "RFT\nn = 1"]


def test_finals_against_a_number_stand_on_a_log_axis_in_its_order(ax: plt.Axes) -> None:
    finals = finals_of({"x20": (0.0, 0.0), "x1": (0.6, 0.7), "x0.05": (0.1, 0.2)})
    rates = {"x20": 1e-3, "x1": 5e-5, "x0.05": 2.5e-6}
    plot_finals_against(ax, finals, rates, "test", "learning rate")
    assert ax.get_xscale() == "log" and ax.get_xlabel() == "learning rate"
    means = ax.lines[-1]
    assert list(means.get_xdata()) == [2.5e-6, 5e-5, 1e-3]
    np.testing.assert_allclose(means.get_ydata(), [0.15, 0.65, 0.0])
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert [tuple(line.get_ydata()) for line in dots] == [(0.1, 0.2), (0.6, 0.7), (0.0, 0.0)]
    assert ax.get_legend_handles_labels()[1] == ["test (n = 2 seeds)"]
    with pytest.raises(ValueError, match=r"x=\{'x1': 0\}: a log axis needs numbers above 0"):
        plot_finals_against(ax, finals, {"x1": 0}, "test", "learning rate")
