"""Recorded trainings that are no GRPO run: each study once a seed, kept in folders like runs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.paths import RUNS_DIR
from gsmrl_helpers.recorded_rollouts import SPLIT
from gsmrl_helpers.recorded_runs import RecordedRun, write_recording
from gsmrl_helpers.records import (
    MANIFEST,
    METRICS,
    ROLLOUTS,
    Row,
    append_row,
    finish_run,
    lock_run,
    long_table,
    make_manifest,
    policy_sha256,
    read_manifest,
    write_json,
    write_results,
    write_rollouts,
)
from gsmrl_helpers.runs import run_folder
from gsmrl_helpers.threads import choose_threads
from gsmrl_helpers.world import policy_location

ANSWERS = "answers"


@dataclass(frozen=True)
class Study:
    """One way to train.

    Attributes:
        settings: what sets it apart, for its manifest.
        run: from a profile's settings with a seed to a row of metrics a step, `step` among them. A
            row's `ANSWERS`, rollouts as rows, are kept as validation answers of that step.
        overrides: the settings in which its runs differ from standard GRPO's.
    """

    settings: Mapping[str, Any]
    run: Callable[[RunConfig], Iterator[Row]]
    overrides: Mapping[str, Any] = field(default_factory=dict)


def record_studies(
    name: str,
    studies: Mapping[str, Study],
    n_seeds: int,
    profile: str,
    path: Path,
    jobs: int = 1,
    fresh: bool = False,
    runs_dir: Path = RUNS_DIR,
) -> None:
    """Run each study with each seed, and write their metrics as one recording.

    What has finished in its folder is not run again, unless `fresh`; what was broken off is.

    Args:
        name: of the recording, and of its folder of runs.
        studies: by name, which is their variant in the recording.
        n_seeds: seeds 0, 1, ...
        profile: whose policy, problems and sampling they use.
        path: the parquet file; its manifest has one entry a run.
        jobs: how many run at a time, each of several in a process of its own.
        fresh: run everything again.
        runs_dir: where the folders of runs lie.
    """
    run_one = partial(run_unless_finished, name, runs_dir, fresh)
    work = list(product(studies.items(), range(n_seeds)))
    configs = [study_config(profile, *item, seed) for item, seed in work]
    arguments = [study for (_, study), _ in work], configs
    if jobs == 1:
        folders = list(map(run_one, *arguments))
    else:
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            folders = list(pool.map(run_one, *arguments))
    if (folders[0] / ROLLOUTS).is_dir():
        runs = [RecordedRun.from_folder(folder) for folder in folders]
        write_recording([(run.manifest["config"]["variant"], run) for run in runs], path)
        return
    table = pd.concat(map(long_table, folders), ignore_index=True)
    write_results(table, path, {"runs": [read_manifest(folder) for folder in folders]})


def study_config(profile: str, variant: str, study: Study, seed: int) -> RunConfig:
    """Standard GRPO's settings at this scale, with what the study overrides."""
    config = experiment_config("on-policy", profile, seed=seed, overrides=dict(study.overrides))
    return config.model_copy(update={"variant": variant})


def run_unless_finished(
    name: str, runs_dir: Path, fresh: bool, study: Study, config: RunConfig
) -> Path:
    """Run a study, unless that was done; return its folder."""
    folder = run_folder(name, config.profile, config.variant, config.seed, runs_dir)
    with lock_run(folder):
        if fresh or not is_finished(folder):
            run_study(study, config, folder, f"gsmrl record {name}")
    return folder


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a finished run."""
    return (folder / MANIFEST).is_file() and read_manifest(folder)["status"] == "finished"


def run_study(study: Study, config: RunConfig, folder: Path, command: str) -> None:
    """Run a study from its start, in place of what the folder holds of it."""
    started = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.set_num_threads(choose_threads(config.threads))
    manifest = make_manifest(config, policy_sha256(policy_location(config)), command)
    write_json(folder / MANIFEST, {**manifest, "study": dict(study.settings)})
    for row in study.run(config):
        if answers := row.pop(ANSWERS, None):
            write_rollouts(folder, f"{SPLIT}-{row['step']:06d}", answers)
        append_row(folder / METRICS, row)
    finish_run(folder, time.monotonic() - started)
