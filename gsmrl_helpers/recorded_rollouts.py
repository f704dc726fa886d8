"""A few answers of recorded runs, to be read by people: `NAME.rollouts.parquet` beside a recording.

A run keeps all rollouts of some steps in its folder, which is not committed. These are the first
answers to validation problems before the first and after the last step, once a seed.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from gsmrl_helpers.paths import RESULTS_DIR
from gsmrl_helpers.records import ROLLOUTS, read_manifest, read_rollouts

COLUMNS = ["question", "gold", "response", "reward", "format_reward", "answer_reward"]
SPLIT, N_ANSWERS = "curve", 64


class NotRecordedError(ValueError):
    """Results that a page needs were not recorded for its profile."""


def rollouts_path(recording: Path) -> Path:
    """Where the answers of a recording lie."""
    return recording.with_suffix(".rollouts.parquet")


def first_answers(run_dir: Path, n: int = N_ANSWERS) -> pd.DataFrame:
    """The first n validation answers of a run at the first and the last step that has some.

    Returns:
        variant, seed, step, question, gold, response and the three rewards, one row an answer.
    """
    config = read_manifest(run_dir)["config"]
    run = {"variant": config["variant"], "seed": config["seed"]}
    files = (run_dir / ROLLOUTS).glob(f"{SPLIT}-*.jsonl")
    steps = [int(file.stem.rpartition("-")[2]) for file in files]
    tables = [
        read_rollouts(run_dir, SPLIT, step)[COLUMNS].head(n).assign(**run, step=step)
        for step in (min(steps), max(steps))
    ]
    return pd.concat(tables, ignore_index=True)[["variant", "seed", "step", *COLUMNS]]


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
