"""Recorded trainings that are no GRPO run: each study once a seed, kept in folders like runs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.records import (
    MANIFEST,
    METRICS,
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
)
from gsmrl_helpers.runs import run_folder
from gsmrl_helpers.threads import choose_threads
from gsmrl_helpers.world import policy_location


@dataclass(frozen=True)
class Study:
    """One way to train.

    Attributes:
        settings: what sets it apart, for its manifest.
        run: from a profile's settings with a seed to a row of metrics a step, `step` among them.
    """

    settings: Mapping[str, Any]
    run: Callable[[RunConfig], Iterator[Row]]


def record_studies(
    name: str,
    studies: Mapping[str, Study],
    n_seeds: int,
    profile: str,
    path: Path,
    fresh: bool = False,
) -> None:
    """Run each study with each seed, one after another, and write their metrics as one recording.

    What has finished in its folder is not run again, unless `fresh`; what was broken off is.

    Args:
        name: of the recording, and of its folder of runs.
        studies: by name, which is their variant in the recording.
        n_seeds: seeds 0, 1, ...
        profile: whose policy, problems and sampling they use.
        path: the parquet file; its manifest has one entry a run.
        fresh: run everything again.
    """
    folders = []
    for (variant, study), seed in product(studies.items(), range(n_seeds)):
        folder = run_folder(name, profile, variant, seed)
        config = experiment_config("on-policy", profile, seed=seed)
        config = config.model_copy(update={"variant": variant})
        with lock_run(folder):
            if fresh or not is_finished(folder):
                run_study(study, config, folder, f"gsmrl record {name}")
        folders.append(folder)
    table = pd.concat(map(long_table, folders), ignore_index=True)
    write_results(table, path, {"runs": [read_manifest(folder) for folder in folders]})


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
        append_row(folder / METRICS, row)
    finish_run(folder, time.monotonic() - started)
