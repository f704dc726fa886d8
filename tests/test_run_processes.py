"""Each run has a process of its own, which ends alone, and never outlives the command."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from threading import Thread

import psutil
import pytest

from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.records import MANIFEST
from gsmrl_helpers.run_many import run_experiments
from gsmrl_helpers.run_outputs import is_finished
from gsmrl_helpers.runs import run_folder
from tests.conftest import PARAMETERS, SMALL_RUN


@pytest.mark.slow
def test_seeds_run_side_by_side(run_notebook, tmp_path):
    assert (
        run_experiments(["smoke"], "pocket", [0, 1], tmp_path, jobs=2, notebook=run_notebook) == []
    )
    manifests = [
        json.loads(
            (run_folder("smoke", "pocket", "standard", seed, tmp_path) / MANIFEST).read_text()
        )
        for seed in (0, 1)
    ]
    assert [(m["config"]["seed"], m["status"]) for m in manifests] == [
        (0, "finished"),
        (1, "finished"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["run_process", "ipykernel"])
def test_a_killed_run_is_told_and_leaves_the_others_alone(make_notebook, tmp_path, victim):
    """The notebook of seed 0 waits to be killed."""
    config = experiment_config("smoke").model_dump(mode="json")
    wait = "if seed == 0:\n    import time\n    time.sleep(90)"
    constants = f"CONFIG = {config!r}\nFAILS = {str(tmp_path / 'fails')!r}\nREWARD = 0.5\n"
    notebook = make_notebook(
        [(PARAMETERS, ["parameters"]), (wait, []), (constants + SMALL_RUN, [])]
    )

    def kill() -> None:
        deadline = time.monotonic() + 60
        other = run_folder("smoke", "pocket", "standard", 1, tmp_path)
        while not is_finished(other) and time.monotonic() < deadline:
            time.sleep(0.05)
        here = psutil.Process().children()
        (process,) = [child for child in here if "seed-0" in child.cmdline()[-1]]
        kernels = process.children()
        (process if victim == "run_process" else kernels[0]).kill()
        _, alive = psutil.wait_procs(kernels, timeout=5)
        still_alive.extend(alive)

    still_alive: list = []
    killer = Thread(target=kill, daemon=True)
    killer.start()
    (failure,) = run_experiments(["smoke"], "pocket", [0, 1], tmp_path, jobs=2, notebook=notebook)
    killer.join()
    assert "killed" in failure and "seed-0" in failure and still_alive == []


def test_a_process_ends_with_the_one_that_started_it():
    """Also where the system has no signal for it: a thread looks whether it is still there."""
    for platform in ("linux", "darwin"):
        child = (
            f"import os, sys, time\nsys.platform = {platform!r}\n"
            "from gsmrl_helpers.orphans import end_with_parent\n"
            "end_with_parent(os.getppid())\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
        )
        parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
        command = [sys.executable, "-c", parent]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            grandchild = psutil.Process(int(process.stdout.readline()))
            process.kill()
            grandchild.wait(timeout=10)
        assert not grandchild.is_running()
