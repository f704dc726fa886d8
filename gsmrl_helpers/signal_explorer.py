"""Pictures of groups without signal: p^G + (1 − p)^G, drawn and under sliders."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from ipywidgets import FloatSlider, HBox, Image, IntSlider, VBox
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gsmrl_helpers.advantage_explorer import as_png
from gsmrl_helpers.plots import line
from gsmrl_helpers.signal import no_signal_probability

SHARES = torch.linspace(0, 1, 201, dtype=torch.float64)


def draw_no_signal(ax: Axes, group_size: int, **style: object) -> None:
    """Draw the share of groups without signal over the share of right answers p."""
    lost = no_signal_probability(SHARES, group_size, "mean")
    ax.plot(SHARES, lost, label=f"G = {group_size}", **style)
    ax.set(xlabel="share of right answers, p", ylabel="share", ylim=(-0.03, 1.03))
    ax.set_title("Groups without signal")


def plot_no_signal(group_sizes: Sequence[int] = (4, 8, 16)) -> Figure:
    """Groups without signal for each group size, and beside it the variance of a reward."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2), layout="constrained")
    for group_size in group_sizes:
        draw_no_signal(left, group_size, **line(f"G = {group_size}"))
    left.legend()
    right.plot(SHARES, SHARES * (1 - SHARES), **line("all"))
    right.set(xlabel="share of right answers, p", ylabel="p(1 − p)", ylim=(0, 0.27))
    right.set_title("Variance of a reward of 0 or 1")
    return figure


def mark_no_signal(p: float, group_size: int) -> Figure:
    """The curve of one group size with the groups lost at one p."""
    figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
    draw_no_signal(ax, group_size, **line("all"))
    lost = no_signal_probability(torch.tensor(p, dtype=torch.float64), group_size, "mean").item()
    ax.plot([p], [lost], "o", color=line("curve")["color"])
    ax.text(0.5, 0.9, f"p = {p:.2f}, G = {group_size}: {lost:.1%} lost", ha="center")
    return figure


def no_signal_explorer(p: float = 0.9, group_size: int = 8) -> VBox:
    """Sliders for p and G, and the share of groups that are lost.

    Raises:
        ValueError: p outside [0, 1], or a group size outside 2 to 64.
    """
    if not 0 <= p <= 1 or not 2 <= group_size <= 64:
        raise ValueError(f"p={p} must lie in [0, 1] and group_size={group_size} in 2 to 64")
    share = FloatSlider(p, min=0, max=1, step=0.01, description="p")
    size = IntSlider(group_size, min=2, max=64, description="G")
    picture = Image(format="png")

    def update(_: object = None) -> None:
        picture.value = as_png(mark_no_signal(share.value, size.value))

    for slider in (share, size):
        slider.observe(update, names="value")
    update()
    return VBox([HBox([share, size]), picture])
