"""Pictures of advantages: the rewards of a group under each baseline and normalizer."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from io import BytesIO
from itertools import product
from typing import get_args

import matplotlib.pyplot as plt
import torch
from ipywidgets import FloatSlider, HBox, Image, SelectionSlider, VBox
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gsmrl_helpers.advantages import compute_group_normalized_rewards
from gsmrl_helpers.options import AdvantageNormalizer, Baseline
from gsmrl_helpers.plots import line

# The pairs that are accepted, by the method that uses them; none/mean is nobody's.
METHODS: dict[tuple[Baseline, AdvantageNormalizer], str] = {
    ("none", "none"): "RFT",
    ("mean", "none"): "Dr_GRPO",
    ("mean", "std"): "GRPO",
    ("mean", "mean"): "MaxRL",
    ("none", "mean"): "",
}
EPS_CHOICES = (0.0, 1e-6, 1e-3, 1e-2, 0.1, 1.0)


def draw_advantages(
    ax: Axes,
    rewards: Sequence[float],
    baseline: Baseline,
    advantage_normalizer: AdvantageNormalizer,
    advantage_eps: float = 1e-6,
) -> None:
    """Draw the advantage of each response of one group as a bar, with its value.

    Where the options are refused for these rewards, the reason stands in the bars' place.

    Args:
        ax: where to draw.
        rewards: G rewards of one group.
        baseline, advantage_normalizer, advantage_eps: see `compute_group_normalized_rewards`.
    """
    responses = range(1, len(rewards) + 1)
    ax.set_xticks(responses)
    ax.margins(y=0.3)
    try:
        advantages, _ = compute_group_normalized_rewards(
            torch.tensor(rewards, dtype=torch.float64),
            len(rewards),
            baseline,
            advantage_eps,
            advantage_normalizer,
        )
    except ValueError as refusal:
        reason = textwrap.fill(str(refusal), 36)
        ax.grid(visible=False)
        ax.text(0.03, 0.95, reason, size=8, va="top", transform=ax.transAxes)
        return
    method = METHODS[baseline, advantage_normalizer]
    color = line(method)["color"] if method else "0.6"
    ax.axhline(0, color="black", lw=0.8)
    bars = ax.bar(responses, advantages.tolist(), width=0.7, color=color)
    ax.bar_label(bars, fmt="%.2f", size=9 if len(rewards) <= 4 else 7, padding=1)


def plot_every_choice(rewards: Sequence[float], advantage_eps: float = 1e-6) -> Figure:
    """One group under both baselines (rows) and all normalizers (columns)."""
    baselines, normalizers = get_args(Baseline), ("none", "std", "mean")
    figure, axes = plt.subplots(
        2, 3, figsize=(9, 4.6), sharex=True, sharey=True, layout="constrained"
    )
    for ax, (baseline, normalizer) in zip(axes.flat, product(baselines, normalizers), strict=True):
        draw_advantages(ax, rewards, baseline, normalizer, advantage_eps)
        ax.set_title(choice_title(baseline, normalizer))
    figure.supxlabel("response", size=9.5)
    figure.supylabel("advantage", size=9.5)
    return figure


def plot_groups(groups: Sequence[Sequence[float]], advantage_eps: float = 1e-6) -> Figure:
    """Several groups (rows) of G rewards each under every accepted choice (columns)."""
    figure, axes = plt.subplots(
        len(groups),
        len(METHODS),
        figsize=(10, 1.4 * len(groups) + 0.6),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for row, rewards in zip(axes, groups, strict=True):
        for ax, choice in zip(row, METHODS, strict=True):
            draw_advantages(ax, rewards, *choice, advantage_eps)
        row[0].set_ylabel(", ".join(f"{reward:g}" for reward in rewards))
    for ax, choice in zip(axes[0], METHODS, strict=True):
        ax.set_title(choice_title(*choice), size=9)
    figure.supxlabel("response", size=9.5)
    figure.supylabel("rewards of the group, and the advantages they give", size=9.5)
    return figure


def choice_title(baseline: Baseline, advantage_normalizer: AdvantageNormalizer) -> str:
    """The pair of options, and below it the method that uses it."""
    method = METHODS.get((baseline, advantage_normalizer), "refused")
    return f"{baseline} / {advantage_normalizer}\n{method or '(no method)'}"


def advantage_explorer(rewards: Sequence[float]) -> VBox:
    """A slider for each reward of a group, and `plot_every_choice` of what they say.

    Args:
        rewards: G ≥ 2 rewards to start from, between -1 and 1.

    Raises:
        ValueError: fewer than two rewards, or one out of the sliders' range.
    """
    if len(rewards) < 2 or not all(-1 <= reward <= 1 for reward in rewards):
        raise ValueError(f"rewards must be at least two between -1 and 1, got {list(rewards)}")
    sliders = [
        FloatSlider(reward, min=-1, max=1, step=0.1, description=f"reward {number}")
        for number, reward in enumerate(rewards, 1)
    ]
    eps = SelectionSlider(options=EPS_CHOICES, value=1e-6, description="eps")
    picture = Image(format="png")

    def update(_: object = None) -> None:
        picture.value = as_png(plot_every_choice([slider.value for slider in sliders], eps.value))

    for control in (*sliders, eps):
        control.observe(update, names="value")
    update()
    return VBox([HBox([VBox(sliders), eps]), picture])


def as_png(figure: Figure) -> bytes:
    """The figure as a PNG file; it is closed, so that no notebook shows it once more."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    plt.close(figure)
    return buffer.getvalue()
