"""Whatever is killed - the command, a run, a machine of a cluster - the results stay the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import psutil
import pytest
import torch

from gsmrl_helpers.checkpoints import load_checkpoint
from gsmrl_helpers.records import METRICS, ROLLOUTS
from gsmrl_helpers.run_checks import finished_problem
from gsmrl_helpers.runs import run_folder

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

EXPERIMENT, VARIANTS, SEEDS, N_STEPS = "learning-rate", ("x0.3", "x3"), (0, 1), 10
SETTINGS = {
    **{"n_grpo_steps": N_STEPS, "rollout_batch_size": 16, "train_batch_size": 16},
    "splits": {"train": 64, "curve": 64, "dev": 8, "test": 64},
    **{"validate_every": 5, "save_rollouts_every": 4, "checkpoint_every": 2},
}
N_KILLS = 10
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def start(runs_dir: Path, *options: str) -> subprocess.Popen:
    """The command on the small catalogue."""
    command = [sys.executable, "-m", "gsmrl_helpers.cli", "run", EXPERIMENT, *options]
    command += ["--variants", ",".join(VARIANTS), "--seeds", ",".join(map(str, SEEDS))]
    command += ["--runs-dir", str(runs_dir)]
    for name, value in SETTINGS.items():
        command += ["--set", f"{name}={json.dumps(value)}"]
    return subprocess.Popen(command, env=ENV)


def folders(runs_dir: Path) -> list[Path]:
    return [run_folder(EXPERIMENT, "pocket", *run, runs_dir) for run in product(VARIANTS, SEEDS)]


def rows_written(runs_dir: Path) -> int:
    paths = [folder / METRICS for folder in folders(runs_dir)]
    return sum(path.read_bytes().count(b"\n") for path in paths if path.is_file())


def processes_of(parent: int, part_of_command: str) -> list[psutil.Process]:
    """The descendants of a process whose command line has this in it."""
    found = []
    for process in psutil.Process(parent).children(recursive=True):
        try:
            if any(part_of_command in word for word in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def wait_for(condition: Callable[[], object], what: str, seconds: float = 300) -> object:
    deadline = time.monotonic() + seconds
    while not (met := condition()):
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.02)
    return met


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small catalogue, run without a disturbance."""
    runs_dir = tmp_path_factory.mktemp("undisturbed")
    assert start(runs_dir, "--jobs", "2").wait() == 0
    return runs_dir


def assert_same_results(runs_dir: Path, undisturbed: Path) -> None:
    for ours, theirs in zip(folders(runs_dir), folders(undisturbed), strict=True):
        assert finished_problem(ours) is None
        assert (ours / METRICS).read_bytes() == (theirs / METRICS).read_bytes()
        names = sorted(path.name for path in (theirs / ROLLOUTS).iterdir())
        assert names == sorted(path.name for path in (ours / ROLLOUTS).iterdir())
        for name in names:
            assert (ours / ROLLOUTS / name).read_bytes() == (theirs / ROLLOUTS / name).read_bytes()
        ended, undisturbed_end = load_checkpoint(ours), load_checkpoint(theirs)
        assert ended["step"] == undisturbed_end["step"] == N_STEPS
        for part in ("model", "optimizer"):
            torch.testing.assert_close(ended[part], undisturbed_end[part], rtol=0, atol=0)


def test_ten_kills_of_the_command_and_of_single_runs_change_nothing(
    tmp_path: Path, undisturbed: Path
) -> None:
    rng = random.Random(0)
    last = len(VARIANTS) * len(SEEDS) * (N_STEPS + 1) - 3
    moments = sorted(rng.sample(range(1, last), N_KILLS))
    victims = rng.sample(["command", "run_process", "ipykernel"] * N_KILLS, N_KILLS)
    assert set(victims) == {"command", "run_process", "ipykernel"}
    process = start(tmp_path, "--jobs", "2")

    def at(rows: int) -> bool:
        nonlocal process
        if process.poll() is not None:  # the others have ended; the killed ones go on
            assert process.returncode == 1
            process = start(tmp_path, "--jobs", "2")
        return rows_written(tmp_path) >= rows and bool(processes_of(process.pid, "ipykernel"))

    for rows, victim in zip(moments, victims, strict=True):
        wait_for(lambda rows=rows: at(rows), f"{rows} rows")
        time.sleep(rng.uniform(0, 0.3))
        if victim == "command":
            orphans = processes_of(process.pid, "run_process") + processes_of(
                process.pid, "ipykernel"
            )
            process.kill()
            assert process.wait() == -signal.SIGKILL
            _, alive = psutil.wait_procs(orphans, timeout=5)
            assert not alive
            process = start(tmp_path, "--jobs", "2")
        elif runs := processes_of(process.pid, victim):
            rng.choice(runs).kill()
    while process.wait() != 0:
        assert process.returncode == 1
        process = start(tmp_path, "--jobs", "2")
    assert_same_results(tmp_path, undisturbed)


def test_a_cluster_that_loses_a_node_ends_with_the_same_results(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'gsmrl-helpers[ray]'")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    size = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=size)
    try:
        node = cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
        process = start(tmp_path, "--ray", cluster.address, "--cpus", "1")
        (raylet,) = [info.process.pid for info in node.all_processes["raylet"]]
        (run,) = wait_for(lambda: processes_of(raylet, "run_process"), "run on the second node")
        folder = Path(json.loads(run.cmdline()[-1])["folder"])
        metrics = folder / METRICS
        wait_for(lambda: metrics.is_file() and metrics.read_bytes().count(b"\n") > 3, "fourth row")
        doomed = [run, *processes_of(raylet, "ipykernel")]
        cluster.remove_node(node, allow_graceful=False)
        _, alive = psutil.wait_procs(doomed, timeout=10)
        assert not alive and finished_problem(folder) is not None
        assert process.wait() == 0
    finally:
        cluster.shutdown()
    assert_same_results(tmp_path, undisturbed)

    finished = [(folder / "run.ipynb").stat().st_mtime_ns for folder in folders(tmp_path)]
    assert start(tmp_path).wait() == 0  # kept, on whatever machine the command is given again
    assert finished == [(folder / "run.ipynb").stat().st_mtime_ns for folder in folders(tmp_path)]
