"""The pictures of the sorting toy show its numbers, and the slider moves them."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest

from gsmrl_helpers.sorting import SortingHistory, run_policy_gradient
from gsmrl_helpers.sorting_replay import (
    plot_epoch,
    plot_filmstrip,
    plot_policy_over_time,
    sorting_replay,
)


@pytest.fixture(scope="module")
def history() -> SortingHistory:
    return run_policy_gradient([3, 4], num_epochs=2, num_steps_per_epoch=1)


@pytest.fixture(autouse=True)
def figures():
    with plt.rc_context({"axes.titlelocation": "left"}):
        yield
    plt.close("all")


def test_filmstrip(history):
    axes = plot_filmstrip(history, run=1, epochs=(0, 2)).axes
    assert len(axes) == 6
    shown = axes[3].images[0].get_array()  # second prompt, epoch 2
    np.testing.assert_allclose(shown, history.probs[2, 1, 1].T)
    assert axes[3].lines[0].get_ydata().tolist() == [2, 3, 4]


def test_policy_over_time(history):
    axes = plot_policy_over_time(history, run=1).axes
    shown = axes[5].images[0].get_array()  # second prompt, third position
    np.testing.assert_allclose(shown, history.probs[:, 1, 1, 2].T)
    assert axes[5].lines[0].get_ydata().tolist() == [4]


def test_an_epoch_and_its_rewards(history):
    titles = [ax.get_title(loc="left") for ax in plot_epoch(history, run=0, epoch=1).axes]
    means = [f"mean reward {reward:.1f}" for reward in history.rewards[1, 0].mean(dim=1)]
    assert all(title.endswith(mean) for title, mean in zip(titles, means, strict=True))
    assert "reward" not in plot_epoch(history, run=0, epoch=2).axes[0].get_title(loc="left")


def test_the_slider_reaches_every_epoch(history):
    slider, picture = sorting_replay(history, run=0).children
    before = picture.value
    assert (slider.min, slider.max) == (0, 2) and bytes(before)[1:4] == b"PNG"
    slider.value = 2
    assert picture.value != before and not plt.get_fignums()
