"""Everything the book has on record, and how to record it again: `gsmrl record NAME`.

A recording is one parquet file in the long form `variant, seed, step, metric, value` under
`data/results/<profile>/`, or one row a rollout, as in `prompt_rollouts`; beside it a manifest that
says what ran, where, and for how long.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal

import pandas as pd
import torch

from gsmrl_helpers.catalogue import EXPERIMENTS
from gsmrl_helpers.checkpoints import load_checkpoint
from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.dpo_runs import record_dpo
from gsmrl_helpers.experiments import (
    default_seeds,
    experiment_config,
    shared_run,
    variants_of,
)
from gsmrl_helpers.loop import Trainer, validate
from gsmrl_helpers.mmlu_answers import record_smollm2_mmlu
from gsmrl_helpers.paths import RESULTS_DIR
from gsmrl_helpers.pocket_problems import load_pocket_problems
from gsmrl_helpers.prompt_rollouts import record_prompt_rollouts, record_smollm2_rollouts
from gsmrl_helpers.prompting import PROMPTS
from gsmrl_helpers.recorded_rollouts import NotRecordedError
from gsmrl_helpers.recorded_runs import RecordedRun, runs_on_record, write_recording
from gsmrl_helpers.records import (
    LONG_COLUMNS,
    make_manifest,
    policy_sha256,
    write_results,
)
from gsmrl_helpers.replay import (
    REPLAYED,
    RUN_KEYS,
    differences,
    recorded_run,
    replay,
    replay_rows,
    run_config,
    steps_of,
)
from gsmrl_helpers.rlhf_runs import record_rlhf
from gsmrl_helpers.run_many import run_experiments
from gsmrl_helpers.runs import run_folder
from gsmrl_helpers.sft_runs import record_sft
from gsmrl_helpers.threads import choose_threads
from gsmrl_helpers.world import load_problems, policy_location

HARDER, N_HARDER = (0.5, 1.0), 512  # difficulties, and problems of each
DIFFICULTIES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


class RecordingFailedError(ValueError):
    """A run that belongs to a recording failed; nothing was replaced."""


@dataclass(frozen=True)
class Recording:
    """One file of results: what it shows, how it is made, and what a row is."""

    what: str
    make: Callable[[str, Path, int, bool], None]
    row: Literal["metric", "rollout"] = "metric"
    folder: str | None = None  # in place of the profile's, where no profile decides it
    optional: bool = False  # needs what the project does not install


def record_runs(
    experiment: str, profile: str, path: Path, jobs: int, fresh: bool, reuse: bool = True
) -> None:
    """Run what is not on record of an experiment, and keep all metrics and a few answers of each
    run, from its start and its end.

    Finished runs of the same settings are kept and stopped ones go on, so that a recording that
    was broken off loses little; `fresh` runs all of them again. Without `reuse` what is on record
    does not count, and only the folders of runs do.

    Raises:
        RecordingFailedError: a run failed; what was on record stays.
    """
    folders = {
        (*shared_run(experiment, variant), seed): run_folder(experiment, profile, variant, seed)
        for variant, seed in runs_of(experiment, profile)
    }
    known = runs_on_record(profile) if reuse and not fresh else {}
    without = [folder for key, folder in folders.items() if key in known]
    if failures := run_experiments([experiment], profile, jobs=jobs, fresh=fresh, without=without):
        raise RecordingFailedError(f"{experiment} was not recorded: {'; '.join(failures)}")
    runs = [known.get(key) or RecordedRun.from_folder(folder) for key, folder in folders.items()]
    names = [variant for variant, _ in runs_of(experiment, profile)]
    write_recording(list(zip(names, runs, strict=True)), path)


def runs_of(experiment: str, profile: str) -> list[tuple[str, int]]:
    """The (variant, seed) of each run that the catalogue asks for at the profile's scale."""
    return list(product(variants_of(experiment), default_seeds(experiment, profile)))


def record_evaluations(
    configs: Mapping[str, RunConfig], splits: tuple[str, ...], name: str, path: Path
) -> None:
    """Evaluate the untrained policy once under each named configuration, on each split."""
    started, rows, manifests = time.monotonic(), [], []
    for variant, config in configs.items():
        torch.set_num_threads(choose_threads(config.threads))
        trainer = Trainer.from_config(config)
        for split in splits:
            metrics, _ = validate(trainer, load_problems(config, split), split, step=0)
            rows += [(variant, config.seed, 0, metric, value) for metric, value in metrics.items()]
        sha = policy_sha256(policy_location(config))
        manifests.append(make_manifest(config, sha, f"gsmrl record {name}"))
    table = pd.DataFrame(rows, columns=LONG_COLUMNS).astype({"value": "float64"})
    seconds = round(time.monotonic() - started, 1)
    finished = [{**m, "status": "finished", "wall_seconds": None} for m in manifests]
    write_results(table, path, {"runs": finished, "wall_seconds": seconds})


def record_prompts(profile: str, path: Path, jobs: int, fresh: bool) -> None:
    """The untrained policy under each prompt, on dev and test."""
    configs = {
        prompt: experiment_config("on-policy", profile, overrides={"prompt": prompt})
        for prompt in PROMPTS
    }
    record_evaluations(configs, ("dev", "test"), "prompts", path)


def record_difficulty(profile: str, path: Path, jobs: int, fresh: bool) -> None:
    """The untrained policy on dev problems, one variant for each setting of the dial."""
    configs = {
        f"{difficulty:.1f}": experiment_config(
            "on-policy", profile, overrides={"difficulty": difficulty}
        )
        for difficulty in DIFFICULTIES
    }
    record_evaluations(configs, ("dev",), "difficulty", path)


def record_signal(profile: str, path: Path, jobs: int, fresh: bool) -> None:
    """Runs on easy problems, and what their last policies do on harder ones of dev."""
    record_runs("signal", profile, path, jobs, fresh, reuse=False)  # checkpoints are needed
    rows = []
    for variant, seed in runs_of("signal", profile):
        config = experiment_config("signal", profile, variant, seed)
        trainer = Trainer.from_config(config)
        folder = run_folder("signal", profile, variant, seed)
        trainer.restore(load_checkpoint(folder))
        for difficulty in HARDER:
            problems = load_pocket_problems("dev", N_HARDER, difficulty=difficulty)
            metrics, _ = validate(trainer, problems, f"dev_at_{difficulty}", config.n_grpo_steps)
            rows += [(variant, seed, config.n_grpo_steps, *item) for item in metrics.items()]
    harder = pd.DataFrame(rows, columns=LONG_COLUMNS).astype({"value": "float64"})
    manifest = json.loads(path.with_suffix(".manifest.json").read_text())
    table = pd.concat([pd.read_parquet(path), harder], ignore_index=True)
    write_results(table, path, {**manifest, "harder_dev_problems": N_HARDER})


def recorded_experiments() -> dict[str, Recording]:
    """A recording of each experiment of the catalogue."""
    make = {name: partial(record_runs, name) for name in EXPERIMENTS if name != "smoke"}
    make["signal"] = record_signal
    return {name: Recording(EXPERIMENTS[name].question, make[name]) for name in make}


def record_replay(profile: str, path: Path, jobs: int, fresh: bool) -> None:
    """The rollouts of the first steps of a few runs, which must come out as they are on record.

    Raises:
        RecordingFailedError: they do not, on a processor of the same capability.
    """
    tables, manifests = [], []
    for key in REPLAYED:
        config, run = run_config(key, profile), recorded_run(key, profile)
        machine, recorded = run.manifest["machine"], steps_of(run)
        torch.set_num_threads(machine["threads"])
        comparable = machine["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
        for step in replay(config):
            if comparable and (differing := differences(step.metrics, recorded.loc[step.step])):
                raise RecordingFailedError(f"{key}, step {step.step} is another run: {differing}")
            tables.append(replay_rows(step).assign(**dict(zip(RUN_KEYS, key, strict=True))))
        manifest = make_manifest(
            config, policy_sha256(policy_location(config)), "gsmrl record replay"
        )
        manifests.append({**manifest, "status": "finished"})
    write_results(pd.concat(tables, ignore_index=True), path, {"runs": manifests})


RECORDINGS: dict[str, Recording] = {
    "prompts": Recording("the untrained policy under each prompt, dev and test", record_prompts),
    "difficulty": Recording("the untrained policy along the difficulty dial", record_difficulty),
    **recorded_experiments(),
    "replay": Recording(
        "rollouts of the first ten steps of three runs above", record_replay, row="rollout"
    ),
    "dpo": Recording("DPO on the samples that GRPO's first steps take", record_dpo),
    "rlhf": Recording(
        "RLHF against a reward model, with and without a KL penalty, and by PPO", record_rlhf
    ),
    "sft": Recording("fine-tuning on worked solutions: prompts that count, slips", record_sft),
    "prompt-rollouts": Recording(
        "the untrained policy's answers to the test problems under each prompt",
        record_prompt_rollouts,
        row="rollout",
    ),
    "smollm2-rollouts": Recording(
        "SmolLM2-135M's answers to 200 questions of GSM8K; optional, an hour on one core",
        record_smollm2_rollouts,
        row="rollout",
        folder="smollm2",
        optional=True,
    ),
    "smollm2-mmlu": Recording(
        "SmolLM2-135M's answers to 400 questions of MMLU; optional, ten minutes on one core",
        record_smollm2_mmlu,
        row="rollout",
        folder="smollm2",
        optional=True,
    ),
}


def recording_path(name: str, profile: str) -> Path:
    """Where a recording lies; an unknown name is a ValueError that lists the known ones."""
    if name not in RECORDINGS:
        raise ValueError(f"recording {name!r} is unknown; allowed: {', '.join(RECORDINGS)}")
    return RESULTS_DIR / (RECORDINGS[name].folder or profile) / f"{name}.parquet"


def record(name: str, profile: str = "pocket", jobs: int = 1, fresh: bool = False) -> Path:
    """Make a recording again and replace the one there is, once it is complete."""
    path = recording_path(name, profile)
    RECORDINGS[name].make(profile, path, jobs, fresh)
    return path


def names_to_record(name: str) -> list[str]:
    """`[name]`, or for "all" every recording that the project's own installation can make."""
    if name != "all":
        return [name]
    return [known for known, recording in RECORDINGS.items() if not recording.optional]


def read_recording(name: str, profile: str = "pocket") -> pd.DataFrame:
    """A recording's table.

    Raises:
        NotRecordedError: it was never made; the message says how to.
        ValueError: an unknown name.
    """
    path = recording_path(name, profile)
    if not path.is_file():
        command = f"gsmrl record {name}" + f" --profile {profile}" * (profile != "pocket")
        raise NotRecordedError(f"{name} is not on record for {profile}; make it: {command}")
    return pd.read_parquet(path)


def processors(name: str, profile: str = "pocket") -> pd.Series:
    """How many runs of each variant were made on which kind of processor.

    Index: `variant`, as the recording calls it, and `processor`. Kinds round differently, so that
    runs of one seed part after some steps.
    """
    runs = read_recording(name, profile)[["variant", "seed"]].drop_duplicates()
    manifest = recording_path(name, profile).with_suffix(".manifest.json")
    made = [run["machine"]["cpu_capability"] for run in json.loads(manifest.read_text())["runs"]]
    kinds = runs.assign(processor=made).groupby(["variant", "processor"], sort=False)
    return kinds.size().rename("runs")


def markdown_table(recording: pd.DataFrame, first: str, columns: Mapping[str, str]) -> str:
    """A recording of single evaluations as Markdown: one row a variant, one column a metric.

    Args:
        recording: a long table with one step and one seed.
        first: heading of the variants' column.
        columns: heading of each column -> its metric, a share.
    """
    wide = recording.pivot(index="variant", columns="metric", values="value")
    variants = list(dict.fromkeys(recording["variant"]))
    lines = [[first, *columns], ["---"] * (len(columns) + 1)]
    for variant in variants:
        shares = [f"{100 * wide.loc[variant, metric]:.1f} %" for metric in columns.values()]
        lines.append([variant, *shares])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
