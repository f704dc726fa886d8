"""Where the time of a step goes, by kind of operation: what stops it from being faster."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.sampling import our_sampler
from benchmarks.step import our_step
from benchmarks.timing import Report, Run, Scale, Value
from benchmarks.worlds import World, pocket_world, random_world

# Kinds of operations, and names of the kernels that do them; the first that fits counts.
KINDS = {
    "matrix products": ("mm", "addmm", "bmm", "baddbmm"),
    "attention": ("_scaled_dot_product", "_flash_attention"),
    "indexing and copies": (
        *("copy_", "cat", "index", "gather", "scatter", "select", "slice", "masked", "fill"),
        *("zero_", "nonzero", "clone", "empty", "take", "arange", "view", "as_strided"),
    ),
    "softmax and reductions": (
        *(
            "softmax",
            "exp",
            "log",
            "logsumexp",
            "sum",
            "max",
            "mean",
            "cumsum",
            "norm",
            "vecdot",
            "any",
            "all",
        ),
        *("rsqrt", "argmax", "amax", "searchsorted", "sort"),
    ),
}
OTHER, OUTSIDE = "other elementwise work", "Python, and the profiler"


def kind_of(operation: str) -> str:
    """The kind that an operation of the profiler, such as `aten::mm`, counts as."""
    name = operation.removeprefix("aten::")
    for kind, names in KINDS.items():
        if any(name == known or (len(known) > 3 and name.startswith(known)) for known in names):
            return kind
    return OTHER


def profiled(what: str, contender: Callable[[], Run]) -> list[dict[str, Value]]:
    """One row a kind: operations, seconds and share of one turn with one thread."""
    contender()
    plain = contender().seconds
    started = time.perf_counter()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        contender()
    wall = time.perf_counter() - started
    calls: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        calls[kind_of(event.key)] += event.count
        seconds[kind_of(event.key)] += event.self_cpu_time_total / 1e6
    outside = max(0.0, wall - sum(seconds.values()))
    rows: list[dict[str, Value]] = [
        {
            "what": what,
            "kind": kind,
            "operations": calls[kind],
            "seconds": seconds[kind],
            "share": seconds[kind] / wall,
        }
        for kind in (*KINDS, OTHER)
    ]
    ends: dict[str, tuple[float, float | None]] = {
        OUTSIDE: (outside, outside / wall),
        "all, not profiled": (plain, None),
    }
    return rows + [
        {"what": what, "kind": kind, "operations": None, "seconds": seconds, "share": share}
        for kind, (seconds, share) in ends.items()
    ]


def update_of(world: World) -> Callable[[], Run]:
    """The whole update of one batch of the world's rollouts."""
    return our_step(world, world.sample())


def measure(scale: Scale) -> Report:
    """Updates and sampling, once each, with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return Report("Where the time goes", {"kinds": profile_all(scale)})
    finally:
        torch.set_num_threads(threads)


def profile_all(scale: Scale) -> list[dict[str, Value]]:
    """Of answers that all have the full length, of answers that stop, of the pocket policy's."""
    worlds = {
        "uniform": random_world(scale, stops=False),
        "stops": random_world(scale, stops=True),
        "pocket": pocket_world(scale),
    }
    rows = []
    for name in ("uniform", "pocket"):
        rows += profiled(f"update, {name}", update_of(worlds[name]))
    for name in ("uniform", "stops"):
        with worlds[name].unchanged():
            rows += profiled(f"sampling, {name}", our_sampler(worlds[name]))
    return rows
