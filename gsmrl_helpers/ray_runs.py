"""Runs on the machines of a Ray cluster (Moritz et al., "Ray", OSDI 2018).

Each run is a Ray task that starts the same process as on one machine. Its node must have this
environment and a clone, and see the runs' folder under the same path: where a node dies, its runs
go on from their last checkpoints on another. A run's folder stays locked while a process writes
into it, so the second try waits until the first has really ended.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gsmrl_helpers.extras import import_extra
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.records import RunFolderError, lock_run
from gsmrl_helpers.run_jobs import Run
from gsmrl_helpers.run_outputs import is_finished
from gsmrl_helpers.run_process import RunProcess
from gsmrl_helpers.runs import running_notebook

RETRIES = 3  # of a run whose node or process has died
PATIENCE_S = 60.0  # for what a dead node leaves: its locks held, its files not yet seen
POLL_S = 0.2
ANSWER_S = 10.0


def run_on_node(job: str, cpus: int) -> str | None:
    """Carry out one run on the machine this is called on; return what failed."""
    folder = ROOT / json.loads(job)["folder"]
    wait_until(lambda: _nobody_runs_into(folder))
    return RunProcess(job, {"OMP_NUM_THREADS": str(cpus)}).outcome()


def wait_until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
    """Whether the condition has come true within that many seconds."""
    deadline = time.monotonic() + patience_s
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return met


def _nobody_runs_into(folder: Path) -> bool:
    with suppress(RunFolderError), lock_run(folder, "launch.lock"), lock_run(folder):
        return True
    return False


def check_that_it_answers(address: str) -> None:
    """Refuse a host and port that nothing listens on: Ray would try for minutes.

    Raises:
        ValueError: naming the address.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), ANSWER_S).close()
    except OSError as error:
        raise ValueError(f"--ray {address}: no Ray cluster answers there ({error})") from error


class RayLauncher:
    """Runs as tasks of a Ray cluster, which starts as many at a time as its nodes have room for.

    Args:
        address: of the cluster, such as "auto" or "10.0.0.1:6379".
        n_gpus: GPUs of a run, from one node.
        cpus: cores of a run, and the threads it computes with.

    Raises:
        ValueError: Ray is not installed, the cluster does not answer, or no node is large enough.
    """

    def __init__(self, address: str, n_gpus: int, cpus: int) -> None:
        self._ray = import_extra("ray", f"--ray {address}")
        check_that_it_answers(address)
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level="error")
        except ConnectionError as error:
            raise ValueError(f"--ray {address}: no Ray cluster answers there ({error})") from error
        self._require_room(n_gpus, cpus)
        options = self._ray.remote(num_cpus=cpus, num_gpus=n_gpus, max_retries=RETRIES)
        self._task, self._cpus = options(run_on_node), cpus
        self._runs: dict = {}  # Ray's reference to the outcome -> the run
        self._before: dict[Run, int] = {}

    def _require_room(self, n_gpus: int, cpus: int) -> None:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(n.get("GPU", 0) >= n_gpus and n.get("CPU", 0) >= cpus for n in nodes):
            self._ray.shutdown()
            raise ValueError(
                f"a run takes {n_gpus} GPUs and {cpus} CPUs of one node, which none of the "
                f"cluster's {len(nodes)} has: give fewer --cpus, or another profile"
            )

    def has_room(self) -> bool:
        return True  # Ray has a queue

    def start(self, run: Run) -> None:
        self._before[run] = _written(run.folder)
        self._runs[self._task.remote(run.job(), self._cpus)] = run

    def is_running(self, run: Run) -> bool:
        return _written(run.folder) != self._before[run]

    def ended(self) -> list[tuple[Run, str | None]]:
        if not self._runs:
            return []
        references = list(self._runs)
        ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        done = [(self._runs.pop(reference), reference) for reference in ready]
        return [(run, self._outcome(run, reference)) for run, reference in done]

    def _outcome(self, run: Run, reference: object) -> str | None:
        try:
            if failure := self._ray.get(reference):
                return failure
        except self._ray.exceptions.RayError as error:
            return f"{run.name}: its task has failed: {str(error).strip().splitlines()[0]}"
        if not wait_until(lambda: is_finished(run.folder)):
            return (
                f"{run.name} has ended well, but is not finished as it is seen here: the folder of "
                "the runs (--runs-dir) must be one that all nodes share"
            )
        return None

    def stop(self) -> None:
        for reference in self._runs:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()


def _written(folder: Path) -> int:
    """When the notebook that runs into this folder was written first or last, in nanoseconds."""
    path = running_notebook(folder)
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
