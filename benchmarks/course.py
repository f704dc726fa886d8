"""The course itself: one pocket run and where its time goes, the book, all notebooks."""

from __future__ import annotations

import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.timing import Report, Scale, Value
from gsmrl_helpers import loop
from gsmrl_helpers.catalogue import smoke
from gsmrl_helpers.config import read_profile
from gsmrl_helpers.experiments import experiment_config
from tools import tasks

PARTS = {"sampling": "sample_batch", "update": "update_policy", "validation": "validate"}


def seconds_of_run(overrides: dict[str, Any]) -> dict[str, float]:
    """Seconds of one run of the profile as `gsmrl run` starts it, by what it does."""
    seconds: dict[str, float] = defaultdict(float)

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = function(*arguments)
            seconds[part] += time.perf_counter() - started
            return result

        return run

    with ExitStack() as stack, TemporaryDirectory() as folder:
        for part, name in PARTS.items():
            stack.enter_context(patch.object(loop, name, timed(part, getattr(loop, name))))
        config = experiment_config("on-policy", overrides=overrides)
        timed("whole run", loop.train)(config, Path(folder) / "run")
    return {part: seconds[part] for part in ("whole run", *PARTS)}


def seconds_of_stages(stages: list[tasks.Stage]) -> float:
    """Seconds that stages of `tools/tasks.py` take, in the project's own environment.

    Raises:
        CalledProcessError: one was red.
    """
    started = time.perf_counter()
    for stage in stages:
        subprocess.run(stage.command, cwd=tasks.ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def measure(scale: Scale) -> Report:
    """One turn of each: nothing is compared, and the notebooks alone take some minutes."""
    few = smoke(read_profile("pocket")) if scale.quick else {}
    run = seconds_of_run({"threads": torch.get_num_threads(), **few})
    rows: list[dict[str, Value]] = [
        {"what": "one run, 100 steps" if part == "whole run" else f"of it {part}", "seconds": s}
        for part, s in run.items()
    ]
    report = Report("The course", {"parts": rows})
    if scale.quick:
        report.left_out.append("book and notebooks: no tiny turn of them")
        return report
    with TemporaryDirectory() as folder:
        out = ["--out", folder]
        build = tasks.Stage("book", tasks.gsmrl("book", "build", *out), 0)
        check = tasks.Stage("pages", tasks.gsmrl("book", "check", *out), 0)
        book = run["whole run"] + seconds_of_stages([build, check])
    rows.append({"what": "make book: a run, the book, the check of its pages", "seconds": book})
    tasks.TEST_OUTPUT.mkdir(parents=True, exist_ok=True)
    notebooks = seconds_of_stages([tasks.nbval("nbval", 0)])
    rows.append({"what": "all CPU notebooks, outputs compared", "seconds": notebooks})
    return report
