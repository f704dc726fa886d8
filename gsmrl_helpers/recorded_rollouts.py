"""A few answers of recorded runs, to be read by people: `NAME.rollouts.parquet` beside a recording.

A run keeps all rollouts of some steps in its folder, which is not committed. These are the first
answers to validation problems before the first and after the last step, once a seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from gsmrl_helpers.paths import RESULTS_DIR
from gsmrl_helpers.records import read_manifest, read_rollouts, write_results

COLUMNS = ["question", "gold", "response", "reward", "format_reward", "answer_reward"]
SPLIT, N_ANSWERS = "curve", 64


class NotRecordedError(ValueError):
    """Results that a page needs were not recorded for its profile."""


def rollouts_path(recording: Path) -> Path:
    """Where the answers of a recording lie."""
    return recording.with_suffix(".rollouts.parquet")


def save_answers(
    run_dirs: Iterable[Path],
    path: Path,
    n: int = N_ANSWERS,
    variants: Iterable[str] | None = None,
) -> pd.DataFrame:
    """Write the first n validation answers at the first and the last step of each run.

    Args:
        run_dirs, path, variants: see `records.save_results`.
        n: answers of each.

    Returns:
        variant, seed, step, question, gold, response and the three rewards, one row an answer.
    """
    run_dirs = list(run_dirs)
    manifests = [read_manifest(run_dir) for run_dir in run_dirs]
    names = variants or [manifest["config"]["variant"] for manifest in manifests]
    tables = []
    for run_dir, manifest, name in zip(run_dirs, manifests, names, strict=True):
        config = manifest["config"]
        for step in (0, config["n_grpo_steps"]):
            answers = read_rollouts(run_dir, SPLIT, step)[COLUMNS].head(n)
            tables.append(answers.assign(variant=name, seed=config["seed"], step=step))
    table = pd.concat(tables, ignore_index=True)[["variant", "seed", "step", *COLUMNS]]
    write_results(table, path, {"split": SPLIT, "answers": n, "runs": manifests})
    return table


def read_answers(name: str, profile: str = "pocket") -> pd.DataFrame:
    """The answers kept of a recording; where none were kept, a ValueError says so."""
    path = rollouts_path(RESULTS_DIR / profile / f"{name}.parquet")
    if not path.is_file():
        raise NotRecordedError(
            f"no answers of {name} are on record for {profile}: gsmrl record {name} --profile "
            f"{profile}"
        )
    return pd.read_parquet(path)


def best_paid(answers: pd.DataFrame, n: int = 20) -> pd.DataFrame:
    """The n best-paid answers, of equally paid ones the shortest: what little earns it all."""
    shortest_first = answers.assign(chars=answers["response"].str.len()).sort_values(
        ["reward", "chars"], ascending=[False, True], kind="stable"
    )
    return shortest_first.head(n).drop(columns="chars")
