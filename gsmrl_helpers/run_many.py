"""Many runs, some at a time. One that fails leaves the others alone.

Where they run is a launcher's business: processes of this machine here, in `ray_runs` those of a
cluster.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gsmrl_helpers.paths import RUNS_DIR
from gsmrl_helpers.ray_runs import RayLauncher
from gsmrl_helpers.records import RunFolderError
from gsmrl_helpers.run_checks import finished_problem
from gsmrl_helpers.run_jobs import Run, plan_runs
from gsmrl_helpers.run_outputs import is_finished
from gsmrl_helpers.run_process import RunProcess
from gsmrl_helpers.run_slots import Slot, gpus_needed, make_slots
from gsmrl_helpers.run_table import Watcher, watch
from gsmrl_helpers.runs import RUN_NOTEBOOK, clear

POLL_S = 0.1


class Launcher(Protocol):
    """Where runs are carried out."""

    def has_room(self) -> bool:
        """Whether another run can be started, or queued, now."""

    def start(self, run: Run) -> None:
        """Start a run, or queue it."""

    def is_running(self, run: Run) -> bool:
        """Whether a run that was started has left the queue."""

    def ended(self) -> list[tuple[Run, str | None]]:
        """The runs that have ended since the last call, with what failed."""

    def stop(self) -> None:
        """End what still runs."""


class LocalLauncher:
    """Runs as processes of this machine, one in each slot."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._free = list(slots)
        self._processes: dict[Run, tuple[RunProcess, Slot]] = {}

    def has_room(self) -> bool:
        return bool(self._free)

    def start(self, run: Run) -> None:
        slot = self._free.pop(0)
        self._processes[run] = RunProcess(run.job(), slot), slot

    def is_running(self, run: Run) -> bool:
        return run in self._processes

    def ended(self) -> list[tuple[Run, str | None]]:
        done = [run for run, (process, _) in self._processes.items() if not process.running()]
        outcomes = []
        for run in done:
            process, slot = self._processes.pop(run)
            self._free.append(slot)
            outcomes.append((run, process.outcome()))
        return outcomes

    def stop(self) -> None:
        for process, _ in self._processes.values():
            process.kill()


def carry_out(runs: Sequence[Run], launcher: Launcher, watcher: Watcher, fresh: bool) -> list[str]:
    """Carry out these runs and return what failed, in their order.

    A finished run is left as it is unless `fresh`, which sets it aside; one that was stopped goes
    on from its last checkpoint. One that another process is at has failed, and nothing of it is
    touched. What still runs when this is interrupted is ended.
    """
    waiting, under_way = deque(runs), set()
    try:
        while waiting or under_way:
            while waiting and launcher.has_room():
                run = waiting.popleft()
                if _make_ready(run, watcher, fresh):
                    launcher.start(run)
                    under_way.add(run)
            for run in under_way:
                if launcher.is_running(run):
                    run.state = "running"
            for run, failure in launcher.ended():
                under_way.remove(run)
                run.end(failure or finished_problem(run.folder))
            watcher.update()
            if under_way:
                time.sleep(POLL_S)
    finally:
        launcher.stop()
        watcher.close()
    return [run.failure for run in runs if run.failure]


def _make_ready(run: Run, watcher: Watcher, fresh: bool) -> bool:
    """Say whether to start a run, and set aside what may not stay in its folder."""
    try:
        if not fresh and is_finished(run.folder):
            run.end(finished_problem(run.folder), "kept")
            return False
        if aside := clear(run.folder, fresh):
            watcher.say(aside)
    except RunFolderError as error:
        run.end(str(error))
    return run.state == "waiting"


def run_experiments(
    experiments: Sequence[str],
    profile: str,
    seeds: Iterable[int] | None = None,
    runs_dir: Path = RUNS_DIR,
    jobs: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    fresh: bool = False,
    variants: Iterable[str] | None = None,
    notebook: Path = RUN_NOTEBOOK,
    ray: str | None = None,
    cpus: int | None = None,
    without: Collection[Path] = (),
) -> list[str]:
    """Run the variants of experiments, once a seed; return what failed.

    Args:
        experiments, profile, seeds, runs_dir, overrides, fresh, variants, notebook: see
            `plan_runs` and `carry_out`.
        jobs: runs at a time on this machine, see `make_slots`.
        ray: address of a Ray cluster, which takes the runs in place of this machine.
        cpus: cores of each run on that cluster; None is one.
        without: folders of runs that are left out.

    Raises:
        ValueError: see `plan_runs` and `make_slots`, or Ray is not there; nothing has run then.
    """
    as_list = [None if names is None else list(names) for names in (seeds, variants)]
    runs = plan_runs(experiments, profile, *as_list, runs_dir, overrides, fresh, notebook)
    runs = [run for run in runs if run.folder not in without]
    n_gpus = max((gpus_needed(run.config) for run in runs), default=0)
    if ray is None:
        if cpus is not None:
            raise ValueError(f"--cpus {cpus} is for --ray; here, --jobs runs share the cores")
        slots = make_slots(n_gpus, jobs)
        _refuse_one_port(runs, at_a_time=len(slots))
        return carry_out(runs, LocalLauncher(slots), watch(runs), fresh)
    if jobs is not None:
        raise ValueError(f"--jobs {jobs}: on a Ray cluster, --cpus says how many runs fit")
    _refuse_one_port(runs, at_a_time=len(runs))
    return carry_out(runs, RayLauncher(ray, n_gpus, cpus or 1), watch(runs), fresh)


def _refuse_one_port(runs: Sequence[Run], at_a_time: int) -> None:
    """Two servers cannot listen on one port."""
    ports = [run.config.vllm.port for run in runs if run.config.engine == "vllm"]
    if at_a_time > 1 and any(ports):
        raise ValueError(
            f"vllm.port={max(filter(None, ports))} serves one run at a time: give --jobs 1, or no "
            "port, and each server takes a free one"
        )
