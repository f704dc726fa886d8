"""The first steps of recorded runs, taken again: does the code still do what it did?

A recording keeps a run's metrics. Of a few runs, `replay.parquet` also keeps the rollouts of the
first steps, with the log-probability of each token. So they can be taken again in two ways: from
nothing, which gives the same bits on a processor of the same capability with as many threads; and
on the stored rollouts, which gives nearly the same numbers on any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.engine import Completion
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.loop import Trainer, batches_of, score, update_policy
from gsmrl_helpers.paths import RESULTS_DIR
from gsmrl_helpers.recorded_rollouts import NotRecordedError
from gsmrl_helpers.recorded_runs import Key, RecordedRun, runs_on_record
from gsmrl_helpers.records import Row
from gsmrl_helpers.rollouts import Rollouts
from gsmrl_helpers.signal import sample_batch
from gsmrl_helpers.stopping import decode_text
from gsmrl_helpers.world import load_problems, problems_of_step

# of three runs: one update a batch, another loss and advantage, 32 updates a batch
REPLAYED: tuple[Key, ...] = (
    ("on-policy", "standard", 0),
    ("variants", "MaxRL", 0),
    ("off-policy", "clip", 0),
)
N_STEPS = 10
RUN_KEYS = ["experiment", "variant", "seed"]
GRADES = ["reward", "format_reward", "answer_reward"]


@dataclass(frozen=True)
class ReplayedStep:
    """One step, taken again.

    Attributes:
        step: its number, from 1.
        rollouts: what it trained on, B rows.
        log_probs: B lists, of the sampled tokens under the policy before the step.
        metrics: of the step, without those of a validation.
    """

    step: int
    rollouts: Rollouts
    log_probs: list[list[float]]
    metrics: Row


def replay(
    config: RunConfig, n_steps: int = N_STEPS, stored: pd.DataFrame | None = None
) -> Iterator[ReplayedStep]:
    """Take the first steps of a run, with the threads that torch has now.

    Args:
        config: the run's settings.
        n_steps: how many.
        stored: rows of `replay_rows` to train on; None samples as the run did.

    Raises:
        ValueError: a step has no stored rollouts.
    """
    trainer = Trainer.from_config(config)
    train = load_problems(config, "train")
    for step in range(1, n_steps + 1):
        if stored is None:
            rollouts, metrics = sample_batch(trainer, train, step)
        else:
            rollouts, metrics = stored_rollouts(trainer, step, stored), {}
        log_probs = sampled_log_probs(trainer, rollouts)
        yield ReplayedStep(step, rollouts, log_probs, metrics | update_policy(trainer, rollouts))
    trainer.engine.close()


def sampled_log_probs(trainer: Trainer, rollouts: Rollouts) -> list[list[float]]:
    """The log-probability of each sampled token under the present policy, one list a response."""
    mask = torch.cat([batch["response_mask"] for batch in batches_of(trainer, rollouts)])
    scored = score(trainer, trainer.model, rollouts)
    return [row[kept].tolist() for row, kept in zip(scored, mask.bool(), strict=True)]


def stored_rollouts(trainer: Trainer, step: int, stored: pd.DataFrame) -> Rollouts:
    """A step's rollouts from their stored rows; the problems follow from the run's seed."""
    rows = stored[stored["step"] == step]
    config = trainer.config
    if len(rows) != config.rollout_batch_size:
        raise ValueError(
            f"step {step} has {len(rows)} stored rollouts and needs {config.rollout_batch_size}: "
            "make them again with gsmrl record replay"
        )
    train = load_problems(config, "train")
    problems = problems_of_step(config, train, step)
    repeated = [problem for problem in problems for _ in range(config.group_size)]
    ids = [list(map(int, ids)) for ids in rows["token_ids"]]
    completions = [
        Completion(
            decode_text(trainer.tokenizer, tokens), tokens, reason, *divmod(row, config.group_size)
        )
        for row, (tokens, reason) in enumerate(zip(ids, rows["finish_reason"], strict=True))
    ]
    grades = (torch.tensor(rows[name].to_numpy(), dtype=torch.float32) for name in GRADES)
    prompts = [trainer.prompt.format(problem.question) for problem in repeated]
    return Rollouts(repeated, prompts, completions, *grades, config.group_size)


def replay_rows(step: ReplayedStep) -> pd.DataFrame:
    """A step as rows to be stored: step, token_ids, finish_reason, the grades, log_probs."""
    columns = ["token_ids", "finish_reason", *GRADES]
    table = pd.DataFrame(step.rollouts.rows())[columns]
    return table.assign(step=step.step, log_probs=step.log_probs)


def recorded_run(key: Key, profile: str) -> RecordedRun:
    """A run on record.

    Raises:
        NotRecordedError: it is not, or not with the settings of the catalogue.
    """
    runs = runs_on_record(profile)
    if key not in runs:
        raise NotRecordedError(
            f"{key} is not on record for {profile}; make it: gsmrl record {key[0]}"
        )
    return runs[key]


def steps_of(run: RecordedRun) -> pd.DataFrame:
    """A run's metrics, a column each, indexed by step."""
    return run.metrics.pivot(index="step", columns="metric", values="value")


def differences(replayed: Row, recorded: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The metrics of a step that are not bit for bit those on record: (replayed, recorded).

    A null on record is NaN there and None in a row; the two are the same.
    """
    pairs = {name: (_known(value), _known(recorded[name])) for name, value in replayed.items()}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def run_config(key: Key, profile: str) -> RunConfig:
    """The settings of a run."""
    experiment, variant, seed = key
    return experiment_config(experiment, profile, variant, seed)


def read_replay(profile: str = "pocket") -> pd.DataFrame:
    """The stored rollouts, one row each, `RUN_KEYS` among its columns."""
    return pd.read_parquet(replay_path(profile))


def replay_path(profile: str) -> Path:
    """Where the stored rollouts lie."""
    return RESULTS_DIR / profile / "replay.parquet"
