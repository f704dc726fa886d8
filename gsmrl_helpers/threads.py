"""How many threads torch computes with, as many as there are free cores unless it is said, and how.

More threads than free cores wait for one another at the end of every small operation; the pocket
scale then runs up to ten times slower. And even on free cores small operations gain little from
being spread over them. Threads that each take half of the rows gain: torch lets go of Python's
lock while it computes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import psutil
import torch

BUSY = 50.0  # percent of the time that something else computes on a core
SHARES = 2  # whatever the number of cores, so that results do not depend on it

Item, Result = TypeVar("Item"), TypeVar("Result")


def map_on_cores(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`[function(item) for item in items]`, as many at a time as torch may use threads.

    In each thread torch computes with that thread alone. What torch keeps a thread, such as
    `no_grad`, the function sets itself.
    """
    n_threads = min(len(items), torch.get_num_threads())
    if n_threads < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(function, items))


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
