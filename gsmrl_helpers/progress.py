"""What a run shows while it is running: its validation accuracy, read from its metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from gsmrl_helpers.records import METRICS

ACCURACY = "curve_mean_answer_reward"  # validation: the split `curve`


def validation_accuracies(folder: Path) -> dict[int, float]:
    """Return step -> share of the validation problems answered right, from the run's metrics.

    A last line that is only half written is left for the next reading.
    """
    path = folder / METRICS
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    rows = (json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n"))
    return {row["step"]: row[ACCURACY] for row in rows if row.get(ACCURACY) is not None}


@contextmanager
def follow_progress(folder: Path, every_s: float = 2.0) -> Iterator[None]:
    """Print a line whenever the run in this folder has validated, while the block runs."""
    stopped, seen = Event(), set(validation_accuracies(folder))

    def follow() -> None:
        ended = False
        while not ended:
            ended = stopped.wait(every_s)
            for step, accuracy in validation_accuracies(folder).items():
                if step not in seen:
                    seen.add(step)
                    print(f"  step {step}: validation accuracy {accuracy:.3f}", flush=True)

    follower = Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        stopped.set()
        follower.join()
