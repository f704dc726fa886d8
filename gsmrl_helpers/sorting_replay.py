"""Pictures of the sorting toy: what the policy thinks of each token, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from ipywidgets import Image, IntSlider, VBox
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from gsmrl_helpers.advantage_explorer import as_png
from gsmrl_helpers.plots import line
from gsmrl_helpers.sorting import PROMPTS, SortingHistory

GREYS = {
    "cmap": "Greys",
    "vmin": 0,
    "vmax": 1,
    "origin": "lower",
    "aspect": "auto",
    "interpolation": "nearest",
}
SORTED = PROMPTS.sort(dim=1).values


def draw_policy(ax: Axes, probs: Tensor, sorted_prompt: Sequence[int]) -> None:
    """The probabilities (pos, vocab) of one prompt as greys, a ring around each right token."""
    length, vocab_size = probs.shape
    ax.imshow(probs.T.numpy(), **GREYS)
    ring = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.6}
    ax.plot(range(length), sorted_prompt, ls="none", color=line("right")["color"], **ring)
    ax.set_xticks(range(length), [str(position + 1) for position in range(length)])
    ax.set_yticks(range(vocab_size))
    ax.grid(visible=False)


def plot_filmstrip(history: SortingHistory, run: int, epochs: Sequence[int]) -> Figure:
    """The policy of one run before each of these epochs (columns), for each prompt (rows)."""
    figure, axes = plt.subplots(
        len(PROMPTS), len(epochs), figsize=(9, 5), sharex=True, sharey=True, layout="constrained"
    )
    for row, probs, right in zip(axes, history.probs[:, run].unbind(1), SORTED, strict=True):
        for ax, epoch in zip(row, epochs, strict=True):
            draw_policy(ax, probs[epoch], right.tolist())
    for ax, epoch in zip(axes[0], epochs, strict=True):
        ax.set_title(f"epoch {epoch}")
    for ax, prompt in zip(axes[:, 0], PROMPTS.tolist(), strict=True):
        ax.set_ylabel(f"prompt {prompt}\ntoken")
    figure.supxlabel("position in the response", size=9.5)
    return figure


def plot_policy_over_time(history: SortingHistory, run: int) -> Figure:
    """Each position (columns) of the response to each prompt (rows): tokens against epochs."""
    num_epochs, _, batch_size, length, vocab_size = history.probs.shape
    figure, axes = plt.subplots(
        batch_size, length, figsize=(9, 5), sharex=True, sharey=True, layout="constrained"
    )
    for row, prompt, right, by_pos in zip(
        axes, PROMPTS.tolist(), SORTED.tolist(), history.probs[:, run].unbind(1), strict=True
    ):
        row[0].set_ylabel(f"prompt {prompt}\ntoken")
        for ax, token, probs in zip(row, right, by_pos.unbind(1), strict=True):
            image = ax.imshow(probs.T.numpy(), **GREYS)
            at_end = {"color": line("right")["color"], "markersize": 7, "clip_on": False}
            ax.plot(num_epochs + 1, token, marker="<", **at_end)
            ax.set_yticks(range(vocab_size))
            ax.grid(visible=False)
    for position, ax in enumerate(axes[0], 1):
        ax.set_title(f"position {position}")
    figure.supxlabel("epoch", size=9.5)
    figure.colorbar(image, ax=axes, label="probability", shrink=0.6)
    return figure


def plot_epoch(history: SortingHistory, run: int, epoch: int) -> Figure:
    """The policy of one run before an epoch, and what the responses sampled from it earned."""
    figure, axes = plt.subplots(
        1, len(PROMPTS), figsize=(8, 2.6), sharey=True, layout="constrained"
    )
    panels = zip(axes, history.probs[epoch, run], SORTED.tolist(), strict=True)
    for batch, (ax, probs, right) in enumerate(panels):
        draw_policy(ax, probs, right)
        title = f"prompt {PROMPTS[batch].tolist()}"
        if epoch < len(history.rewards):
            title += f", mean reward {history.rewards[epoch, run, batch].mean():.1f}"
        ax.set(title=title, xlabel="position in the response")
    axes[0].set_ylabel("token")
    return figure


def sorting_replay(history: SortingHistory, run: int) -> VBox:
    """A slider over the epochs of one run, and `plot_epoch` below it."""
    slider = IntSlider(0, min=0, max=len(history.probs) - 1, description="epoch")
    picture = Image(format="png")

    def update(_: object = None) -> None:
        picture.value = as_png(plot_epoch(history, run, slider.value))

    slider.observe(update, names="value")
    update()
    return VBox([slider, picture])
