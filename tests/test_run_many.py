"""Which runs an experiment asks for, what they share of a machine, and what becomes of them."""

from __future__ import annotations

import io
import json
import sys
from itertools import combinations
from pathlib import Path

import pytest
import torch
from rich.console import Console

from gsmrl_helpers import run_many, run_slots
from gsmrl_helpers.catalogue import EXPERIMENTS
from gsmrl_helpers.config import make_config
from gsmrl_helpers.experiments import (
    SHARED_RUNS,
    default_seeds,
    experiment_config,
    is_pocket,
    real_experiments,
)
from gsmrl_helpers.options import profile_names
from gsmrl_helpers.ray_runs import check_that_it_answers
from gsmrl_helpers.records import MANIFEST, METRICS
from gsmrl_helpers.run_checks import output_problem
from gsmrl_helpers.run_jobs import Run, plan_runs
from gsmrl_helpers.run_many import carry_out, run_experiments
from gsmrl_helpers.run_slots import gpus_needed, make_slots
from gsmrl_helpers.run_table import Lines, LiveTable, Pace
from gsmrl_helpers.runs import RUN_NOTEBOOK
from gsmrl_helpers.server_process import free_port

# --- which runs ---------------------------------------------------------------------------------


def test_all_is_every_real_experiment_with_the_catalogue_s_seeds(tmp_path: Path) -> None:
    runs = plan_runs(["all"], "pocket", runs_dir=tmp_path)
    assert {run.experiment for run in runs} == set(EXPERIMENTS) - {"smoke"}
    assert len(runs) == 4 * 4 + 8 + 2 * 4 + 4 + 2 * 3 + 4 * 4 + 5 * 8 + 8
    assert len({run.folder for run in runs}) == len(runs)
    # own-estimator compares eight seeds with as many of on-policy
    seeds = {run.seed for run in runs if run.experiment == "on-policy"}
    assert seeds == set(range(8)) and default_seeds("on-policy", "pocket") == (0, 1, 2, 3)
    assert {run.seed for run in runs if run.experiment == "signal"} == {0, 1}
    assert default_seeds("off-policy", "two_gpu") == (0, 1, 2, 3)
    assert "signal" not in real_experiments("two_gpu")  # GSM8K has no difficulty to turn


def test_a_run_that_two_experiments_show_is_run_once(tmp_path: Path) -> None:
    runs = plan_runs(["on-policy", "learning-rate"], "pocket", [0], runs_dir=tmp_path)
    names = [(run.experiment, run.variant) for run in runs]
    assert names.count(("on-policy", "standard")) == 1 and ("learning-rate", "x1") not in names
    assert len(names) == 5
    (alone,) = plan_runs(["learning-rate"], "pocket", [0], ["x1"], tmp_path)
    assert alone.folder == runs[0].folder
    assert alone.parameters == runs[0].parameters


def test_runs_of_the_same_settings_are_shared_and_no_others() -> None:
    for profile in profile_names():
        names = [name for name in EXPERIMENTS if is_pocket(profile) or name != "signal"]
        settings = {
            (name, variant): experiment_config(name, profile, variant).model_dump(exclude="variant")
            for name in names
            for variant in EXPERIMENTS[name].variants
        }
        for one, other in combinations(settings, 2):
            is_same = settings[one] == settings[other]
            assert is_same == (SHARED_RUNS[one] == SHARED_RUNS[other]), (profile, one, other)


def test_a_mistake_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--variants x1: those of which of on-policy, learning"):
        plan_runs(["on-policy", "learning-rate"], "pocket", [0], ["x1"], tmp_path)
    with pytest.raises(ValueError, match="named twice: smoke"):
        plan_runs(["smoke", "smoke"], "pocket", runs_dir=tmp_path)
    with pytest.raises(ValueError, match=r"overrides.*cannot be handed to a notebook"):
        plan_runs(["smoke"], "pocket", overrides={"adam_betas": (0.9, 0.95)}, runs_dir=tmp_path)
    with pytest.raises(ValueError, match="--jobs 2: on a Ray cluster"):
        run_experiments(["smoke"], "pocket", [0], tmp_path, jobs=2, ray="auto")
    with pytest.raises(ValueError, match="--cpus 2 is for --ray"):
        run_experiments(["smoke"], "pocket", [0], tmp_path, cpus=2)
    with pytest.raises(ValueError, match=r"vllm.port=8000 serves one run at a time"):
        settings = {"vllm": {"port": 8000}}
        run_experiments(["smoke"], "pocket_vllm", [0], tmp_path, jobs=2, overrides=settings)
    assert not any(tmp_path.iterdir())


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(ValueError, match=r"--ray auto needs ray.*gsmrl-helpers\[ray\]"):
        run_experiments(["smoke"], "pocket", [0], tmp_path, ray="auto")


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "ray://127.0.0.1:{port}"])
def test_a_cluster_that_does_not_answer_is_said_at_once(address: str) -> None:
    with pytest.raises(ValueError, match=r"no Ray cluster answers there.*refused"):
        check_that_it_answers(address.format(port=free_port()))
    check_that_it_answers("auto")  # Ray itself looks for one on this machine


# --- what they share ----------------------------------------------------------------------------


def show_gpus(monkeypatch: pytest.MonkeyPatch, count: int, visible: str | None = None) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(run_slots, "allowed_cores", lambda: set(range(8)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def test_each_run_has_gpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {name: gpus_needed(make_config(name)) for name in profile_names()}
    assert (needs["two_gpu"], needs["one_gpu"]) == (2, 1)
    assert (needs["pocket"], needs["pocket_vllm"]) == (0, 0)
    show_gpus(monkeypatch, 4)
    two_pairs = [
        {"CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "4"},
        {"CUDA_VISIBLE_DEVICES": "2,3", "OMP_NUM_THREADS": "4"},
    ]
    assert make_slots(2, None) == make_slots(2, 2) == two_pairs
    assert make_slots(2, 1) == [{"CUDA_VISIBLE_DEVICES": "0,1"}]
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in make_slots(1, 3)] == ["0", "1", "2"]
    show_gpus(monkeypatch, 3, "7,5,GPU-ab")
    assert make_slots(2, None) == [{"CUDA_VISIBLE_DEVICES": "7,5"}]


def test_too_few_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    show_gpus(monkeypatch, 5)
    with pytest.raises(
        ValueError, match=r"3 at a time .* 2 GPUs each, but of the 5 visible ones 2 can"
    ):
        make_slots(2, 3)
    show_gpus(monkeypatch, 0, "")
    with pytest.raises(ValueError, match="need 2 GPUs each, but of the 0 visible ones 0 can run"):
        make_slots(2, None)


def test_runs_divide_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    show_gpus(monkeypatch, 4)
    assert make_slots(0, None) == make_slots(0, 1) == [{}]  # one run takes what is free
    assert make_slots(0, 3) == [{"OMP_NUM_THREADS": "2"}] * 3
    assert make_slots(0, 16) == [{"OMP_NUM_THREADS": "1"}] * 16


# --- what becomes of them -----------------------------------------------------------------------


def leave_outputs(run: Run, reward: float = 0.5) -> None:
    """What a run leaves in its folder."""
    (run.folder / "checkpoints").mkdir(parents=True)
    manifest = {"status": "finished", "config": run.config.model_dump(mode="json")}
    (run.folder / MANIFEST).write_text(json.dumps(manifest))
    steps = range(run.config.n_grpo_steps + 1)
    rows = [{"step": step, "train_mean_reward": reward if step else None} for step in steps]
    rows[0]["curve_mean_answer_reward"] = 0.25
    (run.folder / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run.folder / "run.ipynb").write_text(RUN_NOTEBOOK.read_text())
    (run.folder / "checkpoints" / f"step-{steps[-1]:06d}-{'0' * 16}.pt").touch()


class Told:
    """A launcher whose runs end one after the other, as they are told to by their seed."""

    def __init__(self, *failures: str | None, at_a_time: int = 2) -> None:
        self.failures, self.under_way, self.at_a_time = failures, [], at_a_time
        self.stopped: list[Run] | None = None

    def has_room(self) -> bool:
        return len(self.under_way) < self.at_a_time

    def start(self, run: Run) -> None:
        self.under_way.append(run)

    def is_running(self, run: Run) -> bool:
        return run in self.under_way

    def ended(self) -> list[tuple[Run, str | None]]:
        run = self.under_way.pop()  # the last first
        failure = self.failures[run.seed]
        if failure == "interrupt":
            raise KeyboardInterrupt
        if failure is None:
            leave_outputs(run)
        elif failure == "no reward":
            leave_outputs(run, reward=0.0)
            failure = None
        return [(run, failure)]

    def stop(self) -> None:
        self.stopped = self.under_way


def smoke_runs(runs_dir: Path, n: int) -> list[Run]:
    return plan_runs(["smoke"], "pocket", range(n), runs_dir=runs_dir)


def test_what_fails_is_told_in_order_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_many, "POLL_S", 0.0)
    runs = smoke_runs(tmp_path, 5)
    launcher = Told("no", None, "no reward", "neither", None)
    failures = carry_out(runs, launcher, Lines(runs), fresh=False)
    assert [run.state for run in runs] == ["failed", "finished", "failed", "failed", "finished"]
    assert failures[0] == "no" and failures[2] == "neither"
    assert "train_mean_reward was 0 at every one of its 2 steps" in failures[1]
    assert launcher.stopped == []
    said = capsys.readouterr()
    assert f"{runs[1].name}, step 0: validation accuracy 0.250\n" in said.out
    assert f"{runs[1].name}: finished" in said.out and f"{runs[0].name}: failed\n" in said.err

    again = smoke_runs(tmp_path, 5)  # what has finished is kept; no reward is none the second time
    failures = carry_out(again, Told(None, None, None, None, None), Lines(again), fresh=False)
    assert [run.state for run in again] == ["finished", "kept", "failed", "finished", "kept"]
    assert failures == [again[2].failure]


@pytest.mark.parametrize("content", [b'{"broken', b"[1]", b'{"config": {}}', b"\xff\xfe"])
def test_a_broken_manifest_fails_its_run_alone_until_fresh_sets_it_aside(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_many, "POLL_S", 0.0)
    runs = smoke_runs(tmp_path, 2)
    broken = runs[0].folder / "manifest.json"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(content)
    runs = smoke_runs(tmp_path, 2)
    failures = carry_out(runs, Told(None, None), Lines(runs), fresh=False)
    assert [run.state for run in runs] == ["failed", "finished"]
    assert len(failures) == 1 and str(broken) in failures[0] and "--fresh" in failures[0]
    assert broken.read_bytes() == content
    again = plan_runs(["smoke"], "pocket", [0], runs_dir=tmp_path, fresh=True)
    assert carry_out(again, Told(None), Lines(again), fresh=True) == []
    aside = broken.parent.with_name("seed-0.aside-1")
    assert (aside / "manifest.json").read_bytes() == content


def test_an_interrupt_ends_what_runs(tmp_path: Path) -> None:
    runs = smoke_runs(tmp_path, 3)
    launcher = Told(None, "interrupt", None)
    with pytest.raises(KeyboardInterrupt):
        carry_out(runs, launcher, Lines(runs), fresh=False)
    assert launcher.stopped == [runs[0]]


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("run.ipynb", "no whole run.ipynb"),
        (METRICS, "not one row for each of the steps 0 to 2"),
        (f"checkpoints/step-000002-{'0' * 16}.pt", "no checkpoint of its last step, 2"),
    ],
)
def test_a_missing_output_is_a_failure(tmp_path: Path, lost: str, said: str) -> None:
    (run,) = smoke_runs(tmp_path, 1)
    leave_outputs(run)
    assert output_problem(run.folder) is None
    (run.folder / lost).unlink()
    assert said in output_problem(run.folder)


# --- how they are shown -------------------------------------------------------------------------


def test_the_time_left_follows_from_the_steps_that_were_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    runs = plan_runs(["on-policy"], "pocket", range(3), runs_dir=tmp_path)
    for run, state in zip(runs, ("running", "running", "waiting"), strict=True):
        run.state = state
    pace = Pace(runs)
    pace.look()
    assert pace.seconds_left() is None and pace.in_words() == "time left not known yet"
    for run, steps in zip(runs, (10, 40), strict=False):
        run.folder.mkdir(parents=True)
        (run.folder / METRICS).write_text("{}\n" * (steps + 1))
    now += 100.0
    pace.look()
    assert pace.seconds_left() == 250 * 100 / 50  # 50 of 300 steps in 100 seconds
    assert pace.in_words() == "about 8 min left"
    now += 4000.0
    assert pace.in_words() == "about 5 h 42 min left"
    runs[0].state = runs[1].state = runs[2].state = "finished"
    assert pace.in_words() == "nothing left"


def shown(table: LiveTable, height: int | None = None) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table.table(height))
    return console.file.getvalue()


def test_the_table_shows_each_run(tmp_path: Path) -> None:
    runs = plan_runs(["learning-rate"], "pocket", range(2), runs_dir=tmp_path)
    x1 = [run for run in runs if run.variant == "standard"]
    x1[0].state, x1[1].state, runs[0].state, runs[1].state = "running", "failed", "kept", "finished"
    x1[0].folder.mkdir(parents=True)
    (x1[0].folder / METRICS).write_text("{}\n" * 8)
    table = LiveTable(runs, Console(file=io.StringIO(), force_terminal=True))
    table.update()
    text = shown(table)
    table.close()
    assert "10 runs: 1 kept, 1 finished, 6 waiting, 1 running, 1 failed; time left not" in text
    lines = {words[1]: words[2:] for words in map(str.split, text.splitlines()) if len(words) == 4}
    assert lines["standard"] == ["7/100", "failed"]
    assert lines["x0.05"] == ["kept", "finished"] and lines["x20"] == ["waiting", "waiting"]
    low = shown(table, height=8)
    assert "standard" in low and "x20" not in low and "10 runs" in low
