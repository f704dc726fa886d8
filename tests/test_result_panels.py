"""Figures of all metrics of one variant: both bands, and what was not recorded is not a 0."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from gsmrl_helpers.result_panels import is_recorded, plot_panels
from tests.test_results import ACCURACY, FOUR, long


@pytest.fixture
def table() -> pd.DataFrame:
    known = long({"standard": FOUR})
    return pd.concat([known, known.assign(metric="kl_to_old", value=np.nan)])


def test_a_null_or_absent_metric_is_not_recorded(table: pd.DataFrame) -> None:
    assert is_recorded(table, ACCURACY)
    assert not is_recorded(table, "kl_to_old")
    assert not is_recorded(table, "no_such_metric")


def test_each_panel_has_both_bands_around_one_mean(table: pd.DataFrame) -> None:
    figure = plot_panels(table, "standard", [("Right", "share", {"test": ACCURACY})])
    left, right = figure.axes
    ends = []
    for ax in (left, right):
        np.testing.assert_allclose(ax.lines[-1].get_ydata(), [0, 0.26])
        corners = ax.collections[0].get_paths()[0].vertices
        ends.append([ax_end(corners, max), ax_end(corners, min)])
    np.testing.assert_allclose(ends, [[0.3046, 0.2154], [0.30, 0.20]], atol=5e-5)
    titles = [ax.get_title() + ax.get_title(loc="left") for ax in (left, right)]
    assert "1.96" in titles[0] and titles[1] == "mean, min to max"
    assert left.get_legend().get_texts()[0].get_text() == "test (n = 4 seeds)"
    plt.close(figure)


def ax_end(corners: np.ndarray, pick: object) -> float:
    """The highest or lowest corner of a band at the last step."""
    return pick(corners[corners[:, 0] == 10, 1])


def test_what_was_not_recorded_is_said_and_not_drawn(table: pd.DataFrame) -> None:
    panels = [
        ("KL to the old policy", "nats", {"train": "kl_to_old"}),
        ("Both", "", {"test": ACCURACY, "train": "kl_to_old"}),
    ]
    figure = plot_panels(table, "standard", panels)
    alone, _, both, _ = figure.axes
    assert not alone.lines and len(both.lines) == 5
    for ax in (alone, both):
        assert [text.get_text() for text in ax.texts] == ["not recorded: kl_to_old"]
    plt.close(figure)


def test_an_unknown_variant_is_refused(table: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match=r"variant='GRPO'.*allowed: standard"):
        plot_panels(table, "GRPO", [("Right", "share", {"test": ACCURACY})])
