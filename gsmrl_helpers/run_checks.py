"""When a run that has ended well has failed all the same."""

from __future__ import annotations

from pathlib import Path

from gsmrl_helpers.checkpoints import NAME, checkpoint_paths
from gsmrl_helpers.paths import relative_to_root
from gsmrl_helpers.records import MANIFEST, METRICS, read_manifest, read_rows
from gsmrl_helpers.run_outputs import EXECUTED_NAME, is_finished

REWARD = "train_mean_reward"


def finished_problem(folder: Path) -> str | None:
    """What `output_problem` says, with the run's name and a way out."""
    if problem := output_problem(folder):
        return f"{relative_to_root(folder)} has failed: {problem} (--fresh runs it again)"
    return None


def output_problem(folder: Path) -> str | None:
    """What makes a finished run a failed one: an output that is missing, or no reward at all."""
    if not is_finished(folder):
        return f"there is no finished {MANIFEST}, or no whole {EXECUTED_NAME}"
    n_steps = read_manifest(folder)["config"]["n_grpo_steps"]
    rows = read_rows(folder / METRICS) if (folder / METRICS).is_file() else []
    if [row["step"] for row in rows] != list(range(n_steps + 1)):
        return f"{METRICS} has not one row for each of the steps 0 to {n_steps}"
    checkpoints = checkpoint_paths(folder)
    if not checkpoints or int(NAME.fullmatch(checkpoints[0].name)[1]) != n_steps:
        return f"there is no checkpoint of its last step, {n_steps}"
    if all(row[REWARD] == 0 for row in rows[1:]):
        return f"{REWARD} was 0 at every one of its {n_steps} steps: it learned nothing"
    return None
