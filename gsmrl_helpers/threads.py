"""How many threads torch computes with: as many as there are free cores, unless it is said.

More threads than free cores wait for one another at the end of every small operation; the pocket
scale then runs up to ten times slower.
"""

from __future__ import annotations

import os

import psutil

BUSY = 50.0  # percent of the time that something else computes on a core


def free_cores(seconds: float = 0.3) -> int:
    """The cores this process may use and nothing else is busy on, at least 1.

    Args:
        seconds: how long to look.
    """
    percents = psutil.cpu_percent(seconds, percpu=True)
    return max(1, sum(percents[core] <= BUSY for core in allowed_cores()))


def allowed_cores() -> set[int]:
    """The cores this process may run on; macOS and Windows know no such restriction."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def choose_threads(threads: int | None = None) -> int:
    """`threads` if given, else OMP_NUM_THREADS if set, else the free cores.

    Raises:
        ValueError: OMP_NUM_THREADS is not a number of at least 1.
    """
    if threads is not None:
        return threads
    said = os.environ.get("OMP_NUM_THREADS")
    if said is None:
        return free_cores()
    if not said.isdecimal() or int(said) < 1:
        raise ValueError(f"OMP_NUM_THREADS={said!r} must be a whole number of at least 1")
    return int(said)
