"""Finished runs as a recording keeps them: manifest, metrics, and a few answers.

What is on record need not be run again. So an experiment can be recorded in several sittings and
on several machines, each run's manifest says where it ran, and a run that two experiments share
is run for the first of them only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.experiments import EXPERIMENTS, experiment_config, shared_run
from gsmrl_helpers.paths import RESULTS_DIR
from gsmrl_helpers.recorded_rollouts import N_ANSWERS, SPLIT, first_answers, rollouts_path
from gsmrl_helpers.records import (
    Row,
    RunFolderError,
    long_table,
    policy_sha256,
    read_manifest,
    write_results,
)
from gsmrl_helpers.world import policy_location

Key = tuple[str, str, int]  # experiment, variant and seed, as they were run


@dataclass(frozen=True)
class RecordedRun:
    """One finished run.

    Attributes:
        manifest: of the run.
        metrics: in the long form.
        answers: the first validation answers at its first and its last step.
    """

    manifest: Row
    metrics: pd.DataFrame
    answers: pd.DataFrame

    @classmethod
    def from_folder(cls, run_dir: Path) -> RecordedRun:
        """What to keep of the run in this folder.

        Raises:
            RunFolderError: it is not finished.
        """
        manifest = read_manifest(run_dir)
        if manifest["status"] != "finished":
            raise RunFolderError(f"{run_dir} is {manifest['status']}, not finished")
        return cls(manifest, long_table(run_dir), first_answers(run_dir))


def write_recording(runs: Sequence[tuple[str, RecordedRun]], path: Path) -> None:
    """Write runs as one recording: metrics and answers as parquet, manifests beside both.

    Args:
        runs: what each run's variant is called there (another name than its own where two
            experiments share it), and the run.
        path: the file of the metrics, in place of one that is there.

    Raises:
        RunFolderError: two runs are of the same variant and seed.
    """
    metrics = pd.concat([run.metrics.assign(variant=name) for name, run in runs], ignore_index=True)
    if metrics.duplicated(["variant", "seed", "step", "metric"]).any():
        raise RunFolderError(f"two of the runs for {path.name} have the same variant and seed")
    answers = pd.concat([run.answers.assign(variant=name) for name, run in runs], ignore_index=True)
    manifests = [run.manifest for _, run in runs]
    write_results(metrics, path, {"runs": manifests})
    kept = {"split": SPLIT, "answers": N_ANSWERS, "runs": manifests}
    write_results(answers, rollouts_path(path), kept)


def runs_on_record(profile: str) -> dict[Key, RecordedRun]:
    """The runs on record that the catalogue would make as they are: same settings, same policy.

    The first experiment that has a run on record is where it is taken from.
    """
    found: dict[Key, RecordedRun] = {}
    for name in EXPERIMENTS:
        path = RESULTS_DIR / profile / f"{name}.parquet"
        if path.is_file() and rollouts_path(path).is_file():
            for key, run in _runs_of(name, path).items():
                if _is_the_catalogues(key, run, profile):
                    found.setdefault(key, run)
    return found


def _runs_of(experiment: str, path: Path) -> dict[Key, RecordedRun]:
    manifests = json.loads(path.with_suffix(".manifest.json").read_text())["runs"]
    of_run = {(m["config"]["variant"], m["config"]["seed"]): m for m in manifests}
    answers = dict(list(pd.read_parquet(rollouts_path(path)).groupby(["variant", "seed"])))
    runs = {}
    for run, rows in pd.read_parquet(path).groupby(["variant", "seed"], sort=False):
        variant, seed = run
        shared = shared_run(experiment, variant)
        # before runs were shared, each was made under its own name
        manifest = of_run.get((shared[1], seed)) or of_run[run]
        runs[(*shared, seed)] = RecordedRun(manifest, rows, answers[run])
    return runs


def _is_the_catalogues(key: Key, run: RecordedRun, profile: str) -> bool:
    experiment, variant, seed = key
    try:
        config = experiment_config(experiment, profile, variant, seed)
    except ValueError:  # a variant that the catalogue no longer has
        return False
    sha = policy_sha256(policy_location(config))
    recorded = RunConfig(**run.manifest["config"]).model_copy(update={"variant": config.variant})
    return (recorded, run.manifest["policy_sha256"]) == (config, sha)
