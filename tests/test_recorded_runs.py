"""Runs on record: what is kept of each, and what need not be run again."""

import json
from pathlib import Path

import pandas as pd
import pytest

from gsmrl_helpers import recorded_runs, recordings
from gsmrl_helpers.experiments import experiment_config, run_command
from gsmrl_helpers.recorded_runs import RecordedRun, runs_on_record, write_recording
from gsmrl_helpers.recordings import RecordingFailedError, record_runs
from gsmrl_helpers.records import (
    METRICS,
    RunFolderError,
    append_row,
    finish_run,
    make_manifest,
    policy_sha256,
    write_json,
    write_rollouts,
)
from gsmrl_helpers.world import policy_location

ANSWER = {"question": "q", "gold": "1", "response": "1", "token_ids": [1], "finish_reason": "stop"}
GRADES = {"reward": 1.0, "format_reward": 1.0, "answer_reward": 1.0}


def make_run(folder: Path, experiment: str, variant: str, seed: int, value: float = 0.5) -> Path:
    """The folder of a run of the catalogue, finished, with two rows of one metric."""
    config = experiment_config(experiment, variant=variant, seed=seed)
    command = run_command(experiment, "pocket", variant, seed)
    folder.mkdir(parents=True)
    sha = policy_sha256(policy_location(config))
    write_json(folder / "manifest.json", make_manifest(config, sha, command))
    for step in (0, config.n_grpo_steps):
        append_row(folder / METRICS, {"step": step, "test_mean_answer_reward": value})
        write_rollouts(folder, f"curve-{step:06d}", [ANSWER | GRADES])
    finish_run(folder, 1.0)
    return folder


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (recorded_runs, recordings):
        monkeypatch.setattr(module, "RESULTS_DIR", tmp_path / "results")
    return tmp_path / "results" / "pocket"


def record(results: Path, tmp_path: Path, experiment: str, variant: str, *seeds: int) -> None:
    folders = [
        make_run(tmp_path / f"{variant}-{seed}", experiment, variant, seed) for seed in seeds
    ]
    runs = [(variant, RecordedRun.from_folder(folder)) for folder in folders]
    write_recording(runs, results / f"{experiment}.parquet")


def test_a_recording_has_metrics_answers_and_manifests(results: Path, tmp_path: Path) -> None:
    record(results, tmp_path, "on-policy", "standard", 0, 1)
    table = pd.read_parquet(results / "on-policy.parquet")
    assert list(table["seed"]) == [0, 0, 1, 1] and list(table["step"]) == [0, 100, 0, 100]
    answers = pd.read_parquet(results / "on-policy.rollouts.parquet")
    assert list(answers["step"]) == [0, 100, 0, 100] and set(answers["response"]) == {"1"}
    for name in ("on-policy", "on-policy.rollouts"):
        manifest = json.loads((results / f"{name}.manifest.json").read_text())
        assert [run["config"]["seed"] for run in manifest["runs"]] == [0, 1]


def test_a_run_that_is_not_finished_or_there_twice_is_refused(results: Path, tmp_path: Path):
    folder = make_run(tmp_path / "run", "on-policy", "standard", 0)
    run = RecordedRun.from_folder(folder)
    with pytest.raises(RunFolderError, match="same variant and seed"):
        write_recording([("standard", run)] * 2, results / "on-policy.parquet")
    manifest = json.loads((folder / "manifest.json").read_text())
    write_json(folder / "manifest.json", {**manifest, "status": "running"})
    with pytest.raises(RunFolderError, match="is running, not finished"):
        RecordedRun.from_folder(folder)


def test_what_is_on_record_is_not_run_again(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(results, tmp_path, "on-policy", "standard", 0, 1, 2, 3)
    asked = {}

    def run_experiments(experiments, profile, without, **options) -> list[str]:
        asked["without"] = without
        for variant, seed in recordings.runs_of("prompt-ablation", "pocket"):
            folder = tmp_path / "runs" / variant / f"seed-{seed}"
            if variant != "r1_zero" and not folder.exists():
                make_run(folder, "prompt-ablation", variant, seed, value=0.25)
        return []

    def folder_of(experiment: str, profile: str, variant: str, seed: int) -> Path:
        return tmp_path / "runs" / variant / f"seed-{seed}"

    monkeypatch.setattr(recordings, "run_experiments", run_experiments)
    monkeypatch.setattr(recordings, "run_folder", folder_of)
    path = results / "prompt-ablation.parquet"
    record_runs("prompt-ablation", "pocket", path, jobs=1, fresh=False)
    assert {folder.parent.name for folder in asked["without"]} == {"r1_zero"}
    table = pd.read_parquet(path)
    assert set(table[table["variant"] == "r1_zero"]["value"]) == {0.5}
    assert set(table[table["variant"] != "r1_zero"]["value"]) == {0.25}
    assert len(json.loads(path.with_suffix(".manifest.json").read_text())["runs"]) == 12
    with pytest.raises(ValueError, match="r1_zero"):  # fresh runs all, and finds no folder of it
        record_runs("prompt-ablation", "pocket", path, jobs=1, fresh=True)
    monkeypatch.setattr(recordings, "run_experiments", lambda *a, **k: ["it broke"])
    with pytest.raises(RecordingFailedError, match="it broke"):
        record_runs("prompt-ablation", "pocket", path, jobs=1, fresh=False)


def test_runs_of_other_settings_or_another_policy_do_not_count(results: Path, tmp_path: Path):
    record(results, tmp_path, "on-policy", "standard", 0, 1)
    path = results / "on-policy.manifest.json"
    manifest = json.loads(path.read_text())
    manifest["runs"][1]["config"]["learning_rate"] *= 2
    write_json(path, manifest)
    assert set(runs_on_record("pocket")) == {("on-policy", "standard", 0)}
    manifest["runs"][0]["policy_sha256"] = "another"
    write_json(path, manifest)
    assert not runs_on_record("pocket")
