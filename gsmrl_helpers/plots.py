"""The course's figures: one style, one colour and dash for each thing, every seed shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gsmrl_helpers.intervals import t_interval

# A colour (Okabe and Ito, 2008) and a dash each, so that a line is known in grey as well.
LINES: dict[str, tuple[str, object]] = {
    "train": ("#0072B2", "-"),
    "curve": ("#D55E00", "--"),
    "test": ("#009E73", ":"),
    "all": ("#000000", "-"),
    "right": ("#009E73", "-."),
    "wrong": ("#CC79A7", ":"),
    "too low": ("#56B4E9", ":"),
    "as tuned": ("#0072B2", "-"),
    "too high": ("#D55E00", "--"),
    "in format": ("#E69F00", "--"),
    "dev": ("#0072B2", "-"),
    # the beginning and the end of runs, and tries at a problem
    "first steps": ("#E69F00", "--"),
    "last steps": ("#0072B2", "-"),
    "pass@1": ("#0072B2", "-"),
    "pass@2": ("#56B4E9", (0, (5, 1))),
    "pass@4": ("#009E73", "--"),
    "pass@8": ("#D55E00", ":"),
    # multiples of a profile's learning rate
    "x0.05": ("#56B4E9", ":"),
    "x0.3": ("#009E73", "-."),
    "x1": ("#0072B2", "-"),
    "x3": ("#E69F00", (0, (5, 1))),
    "x20": ("#D55E00", "--"),
    # baselines
    "no baseline": ("#000000", (0, (1, 1))),
    "b = 1/2": ("#E69F00", "--"),
    "b = p": ("#0072B2", "-"),
    "b = 1 − p": ("#009E73", "-."),
    # the variants of GRPO
    "standard": ("#0072B2", "-"),
    "GRPO": ("#0072B2", "-"),
    "GRPO_constant": ("#56B4E9", (0, (5, 1))),
    "Dr_GRPO": ("#D55E00", "--"),
    "RFT": ("#009E73", "-."),
    "MaxRL": ("#CC79A7", ":"),
    "log_odds": ("#E69F00", (0, (3, 1, 1, 1))),
    "your own": ("#000000", (0, (1, 1))),
    # prompts
    "r1_zero": ("#0072B2", "-"),
    "r1_zero_three_shot": ("#D55E00", "--"),
    "question_only": ("#009E73", ":"),
    # questions that two models are compared on
    "questions of its own": ("#D55E00", "--"),
    "the same questions": ("#0072B2", "-"),
    # what is paid
    "full reward": ("#0072B2", "-"),
    "format only": ("#D55E00", "--"),
    # what is imitated, and which tokens of it count
    "response only": ("#0072B2", "-"),
    "prompt too": ("#E69F00", "--"),
    "with slips": ("#D55E00", ":"),
    # what a reward model is maximised by
    "GRPO, no KL": ("#D55E00", "--"),
    "GRPO, KL": ("#0072B2", "-"),
    "PPO, KL": ("#009E73", "-."),
    # journals of runs
    "healthy": ("#0072B2", "-"),
    "collapsed": ("#D55E00", "--"),
    "hacked": ("#CC79A7", ":"),
    # sizes of a group
    "G = 4": ("#D55E00", ":"),
    "G = 8": ("#0072B2", "-"),
    "G = 16": ("#009E73", "--"),
    # what keeps the signal alive
    "fixed": ("#000000", (0, (1, 1))),
    "dynamic sampling": ("#0072B2", "-"),
    "following dial": ("#D55E00", "--"),
    # the ways to reweight by importance
    "none": ("#000000", (0, (1, 1))),
    "naive": ("#000000", (0, (1, 1))),
    "noclip": ("#E69F00", "--"),
    "clip": ("#0072B2", "-"),
    "gspo": ("#009E73", "-."),
    "cispo": ("#CC79A7", ":"),
    "on-policy": ("#D55E00", (0, (5, 1))),
    # the ways to average a loss over tokens
    "sequence": ("#0072B2", "-"),
    "constant": ("#D55E00", "--"),
    "token": ("#009E73", "-."),
    # models of choice
    "Bradley–Terry": ("#0072B2", "-"),
    "Thurstone": ("#D55E00", "--"),
    # pairs, and fresh samples
    "beta 0.1": ("#D55E00", "--"),
    "beta 1": ("#009E73", "-."),
    "DPO, beta 0.1": ("#D55E00", "--"),
    "DPO, beta 1": ("#009E73", "-."),
    "GRPO, 20 steps": ("#56B4E9", "-"),
    "GRPO, all steps": ("#0072B2", "-"),
    # what a device's memory holds
    "weights": ("#0072B2", "-"),
    "gradients": ("#56B4E9", "--"),
    "optimizer": ("#009E73", "-."),
    "activations": ("#E69F00", ":"),
    "logits": ("#D55E00", (0, (5, 1))),
    "KV cache": ("#CC79A7", (0, (1, 1))),
}


def line(name: str) -> dict[str, object]:
    """Colour and dash of a method, as keywords of matplotlib's `plot`.

    Raises:
        ValueError: the name has no line of its own.
    """
    if name not in LINES:
        raise ValueError(f"name={name!r} has no colour; allowed: {', '.join(LINES)}")
    color, linestyle = LINES[name]
    return {"color": color, "linestyle": linestyle}


def use_style() -> None:
    """Give all figures of a notebook the course's style."""
    with resources.as_file(resources.files("gsmrl_helpers") / "course.mplstyle") as style:
        plt.style.use(style)


def plot_metric(ax: Axes, table: pd.DataFrame, metric: str, name: str) -> None:
    """Draw one metric over the steps: every seed faintly, and the mean with its 95 % t interval.

    Args:
        ax: where to draw.
        table: results in the long form `variant, seed, step, metric, value`.
        metric: the metric to draw; steps at which it is null are left out.
        name: a key of `LINES`; it stands in the legend, with the number of seeds.

    Raises:
        ValueError: the metric does not occur, or the name has no line of its own.
    """
    style = line(name)
    rows = table[table["metric"] == metric].dropna(subset="value")
    if rows.empty:
        raise ValueError(f"metric={metric!r} was not recorded in these results")
    axes = {"data": rows, "x": "step", "y": "value", "color": style["color"], "ax": ax}
    sns.lineplot(**axes, units="seed", estimator=None, lw=0.8, alpha=0.35)
    n_seeds = rows["seed"].nunique()
    label = seeds_label(name, n_seeds)
    interval = {"errorbar": t_interval if n_seeds > 1 else None, "err_kws": {"lw": 0}}
    sns.lineplot(**axes, linestyle=style["linestyle"], label=label, **interval)


def seeds_label(name: str, n_seeds: int) -> str:
    """A legend's text: what is drawn, and of how many seeds."""
    return f"{name} (n = {n_seeds} seed{'s' * (n_seeds > 1)})"


Panel = tuple[str, str, Mapping[str, str]]

RUN_PANELS: Sequence[Panel] = (
    (
        "Right answers",
        "share",
        {"train": "train_mean_answer_reward", "curve": "curve_mean_answer_reward"},
    ),
    (
        "In format",
        "share",
        {"train": "train_mean_format_reward", "curve": "curve_mean_format_reward"},
    ),
    ("Groups without signal", "share", {"train": "no_signal_group_share"}),
    ("Token entropy", "nats", {"train": "token_entropy", "curve": "curve_token_entropy"}),
    (
        "Response length",
        "tokens",
        {
            "all": "train_response_length",
            "right": "train_response_length_right",
            "wrong": "train_response_length_wrong",
        },
    ),
    ("Gradient norm, before clipping", "2-norm", {"train": "grad_norm"}),
)


def plot_run(table: pd.DataFrame, panels: Sequence[Panel] = RUN_PANELS) -> Figure:
    """One panel for each group of metrics of a run (or of several seeds of one variant)."""
    n_rows = (len(panels) + 1) // 2
    figure, axes = plt.subplots(n_rows, 2, figsize=(8.4, 2.8 * n_rows), layout="constrained")
    for ax, (title, unit, metrics) in zip(axes.flat, panels, strict=False):
        for name, metric in metrics.items():
            plot_metric(ax, table, metric, name)
        ax.set(title=title, ylabel=unit, xlabel="step")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if unit == "share":
            ax.set_ylim(-0.03, 1.03)
        ax.legend(loc="best")
    for ax in axes.flat[len(panels) :]:
        ax.remove()
    sns.despine(figure)
    return figure
