"""The explorer of advantages: what its bars show, and that its sliders move them."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gsmrl_helpers.advantage_explorer import (
    advantage_explorer,
    plot_every_choice,
    plot_groups,
)


@pytest.fixture(autouse=True)
def figures():
    with plt.rc_context({"axes.titlelocation": "left"}):
        yield
    plt.close("all")


def bar_heights(ax) -> list[float]:
    return [bar.get_height() for bar in ax.patches]


def test_every_choice_has_its_place_and_its_bars() -> None:
    axes = plot_every_choice([1.0, 0.0, 0.0, 0.0]).axes
    expected = {
        "mean / none\nDr_GRPO": [0.75, -0.25, -0.25, -0.25],
        "mean / std\nGRPO": [1.5, -0.5, -0.5, -0.5],
        "mean / mean\nMaxRL": [3.0, -1.0, -1.0, -1.0],
        "none / none\nRFT": [1.0, 0.0, 0.0, 0.0],
        "none / std\nrefused": [],
        "none / mean\n(no method)": [4.0, 0.0, 0.0, 0.0],
    }
    assert [ax.get_title(loc="left") for ax in axes] == list(expected)
    for ax, heights in zip(axes, expected.values(), strict=True):
        assert bar_heights(ax) == pytest.approx(heights, abs=2e-5)
    (refusal,) = axes[4].texts
    assert "needs baseline='mean'" in refusal.get_text().replace("\n", " ")


def test_eps_and_negative_rewards_reach_the_bars() -> None:
    axes = plot_every_choice([1.0, 0.0], advantage_eps=0.5).axes
    assert bar_heights(axes[2]) == pytest.approx([0.5, -0.5])
    refused = [ax for ax in plot_every_choice([1.0, -0.5]).axes if not ax.patches]
    assert [ax.get_title(loc="left") for ax in refused] == [
        "mean / mean\nMaxRL",
        "none / std\nrefused",
        "none / mean\n(no method)",
    ]


def test_a_row_for_each_group() -> None:
    axes = plot_groups([[1.0, 0.0], [0.5, 0.5]]).axes
    assert len(axes) == 10
    assert [axes[0].get_ylabel(), axes[5].get_ylabel()] == ["1, 0", "0.5, 0.5"]
    assert bar_heights(axes[1]) == [0.5, -0.5] and bar_heights(axes[6]) == [0.0, 0.0]


def test_a_moved_slider_redraws_the_picture_and_leaves_no_figure_open() -> None:
    controls, picture = advantage_explorer([1.0, 0.0]).children
    sliders, eps = controls.children
    shown = [bytes(picture.value)]
    sliders.children[1].value = 0.4
    shown.append(bytes(picture.value))
    eps.value = 1.0
    shown.append(bytes(picture.value))
    assert len(set(shown)) == 3 and all(image.startswith(b"\x89PNG") for image in shown)
    sliders.children[1].value, eps.value = 0.0, 1e-6
    assert bytes(picture.value) == shown[0]
    assert plt.get_fignums() == []


@pytest.mark.parametrize("rewards", [[1.0], [1.0, 1.1], [-2.0, 0.0]])
def test_rewards_that_sliders_cannot_show_are_refused(rewards: list[float]) -> None:
    with pytest.raises(ValueError, match="between -1 and 1"):
        advantage_explorer(rewards)
