"""Timing contenders in turn, and what is written down of it."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any, NamedTuple

import torch

from gsmrl_helpers.memory import LiveBytes
from gsmrl_helpers.records import git_commit
from gsmrl_helpers.threads import allowed_cores

PACKAGES = ("torch", "transformers", "trl", "math-verify", "numpy")

Value = str | int | float | None | dict[str, float]


class Run(NamedTuple):
    """One run of a contender: its seconds, and the tokens it made where that is counted."""

    seconds: float
    tokens: int = 0


Contender = Callable[[], Run]


@dataclass(frozen=True)
class Scale:
    """How much a bench does: in full, or one tiny repeat that shows that it works."""

    repeats: int = 5
    n_prompts: int = 32
    group_size: int = 8
    max_tokens: int = 64
    quick: bool = False


QUICK = Scale(repeats=1, n_prompts=2, group_size=2, max_tokens=6, quick=True)


@dataclass
class Report:
    """What a bench found: tables of rows (column -> value), and what it had to leave out."""

    title: str
    tables: dict[str, list[dict[str, Value]]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def timed(work: Callable[[], object]) -> Contender:
    """A contender that does `work` and counts no tokens."""

    def run() -> Run:
        started = time.perf_counter()
        work()
        return Run(time.perf_counter() - started)

    return run


def interleave(contenders: Mapping[str, Contender], repeats: int) -> dict[str, list[Run]]:
    """Run each contender once to warm up, then all of them in turn, `repeats` times: A B A B …

    What slows the machine down for a while then slows every contender down.
    """
    for contender in contenders.values():
        contender()
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, contender in contenders.items():
            gc.collect()
            runs[name].append(contender())
    return runs


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def seconds_of(runs: Sequence[Run]) -> dict[str, float]:
    """The spread of the runs' seconds."""
    return spread([run.seconds for run in runs])


def peak_live_bytes(work: Callable[[], object]) -> int:
    """The most bytes of tensors that `work` holds at once, of those that it makes."""
    with LiveBytes() as memory:
        work()
    return memory.peak


def relative_difference(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """|found - expected| / |expected|, each list of tensors taken as one vector; 0 if equal."""
    squares = [
        ((f.double() - e.double()).square().sum(), e.double().square().sum())
        for f, e in zip(found, expected, strict=True)
    ]
    difference, norm = (torch.stack(column).sum().sqrt() for column in zip(*squares, strict=True))
    return (difference / norm).item() if difference else 0.0


def machine_facts() -> dict[str, Any]:
    """What the numbers depend on, and nothing that says whose machine it is."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cores": len(allowed_cores()),
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "versions": versions,
        "commit": git_commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }
