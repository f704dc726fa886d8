"""The landing page's figure and answers, from the recorded runs of standard GRPO."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from gsmrl_helpers.plots import use_style
from gsmrl_helpers.recorded_rollouts import rollouts_path
from gsmrl_helpers.result_plots import plot_curves
from gsmrl_helpers.results import final_values, rows_of

RECORDING = Path("data") / "results" / "pocket" / "on-policy.parquet"
FIGURE = Path("book") / "generated_landing.png"
ACCURACY, FORMAT = "curve_mean_answer_reward", "curve_mean_format_reward"
N_SHOWN = 3


def draw(results: pd.DataFrame, path: Path) -> None:
    """Validation answers that are right, and that are in the format, over a run's steps."""
    use_style()
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.1), layout="constrained", sharey=True)
    for ax, metric, title in zip(
        axes, (ACCURACY, FORMAT), ("Right answers", "Answers in the format"), strict=True
    ):
        plot_curves(ax, results, metric)
        ax.set(title=title, xlabel="step of GRPO", ylim=(0, 1))
    axes[0].set_ylabel("share of validation answers")
    axes[0].legend(loc="lower right")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def learned(answers: pd.DataFrame, n: int = N_SHOWN) -> pd.DataFrame:
    """The first n questions of seed 0 that are answered wrongly before its run and rightly after.

    Returns:
        question, before, after.
    """
    seed = answers[answers["seed"] == 0]
    before, after = (
        seed[seed["step"] == step].reset_index(drop=True)
        for step in (seed["step"].min(), seed["step"].max())
    )
    rows = (before["answer_reward"] == 0) & (after["answer_reward"] == 1)
    return pd.DataFrame(
        {
            "question": before["question"],
            "before": before["response"].str.strip(),
            "after": after["response"].str.strip(),
        }
    )[rows].head(n)


def percent(share: float) -> str:
    """A share as the book writes it, with a space that does not break."""
    return f"{100 * share:.0f}\N{NO-BREAK SPACE}%"


def literally(text: str) -> str:
    """Markdown that shows just this text, whatever marks it holds."""
    return "".join(c if c.isalnum() or c in " .,?" else f"&#{ord(c)};" for c in text)


def landing_markdown(copy: Path) -> str:
    """A figure, what it shows in numbers, and a few answers before and after."""
    results = pd.read_parquet(copy / RECORDING)
    draw(results, copy / FIGURE)
    curve = rows_of(results, ACCURACY)
    first = curve[curve["step"] == 0]["value"].mean()
    last = final_values(results, ACCURACY)["value"]
    shown = learned(pd.read_parquet(rollouts_path(copy / RECORDING)))
    table = ["| question | before | after |", "|---|---|---|"]
    table += [f"| {' | '.join(map(literally, row))} |" for row in shown.itertuples(index=False)]
    return "\n".join(
        [
            f"```{{figure}} {FIGURE.name}",
            ":alt: Two curves that rise over the steps of training, each seed faintly and the mean",
            ":width: 100%",
            "",
            f"Standard GRPO at the pocket scale, {len(last)} seeds: each faintly, the mean with "
            f"μ ± 1.96 σ/√n. Right answers go from {percent(first)} to {percent(last.mean())} "
            f"({percent(last.min())} to {percent(last.max())}); answers are sampled at temperature "
            "1. {doc}`/notebooks/14_on_policy_results` reads these runs.",
            "```",
            "",
            f"The first {len(shown)} validation questions that one of them got wrong before and "
            "right after:",
            "",
            *table,
        ]
    )
