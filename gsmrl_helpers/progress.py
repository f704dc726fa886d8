"""What a run shows while it is running: its validation accuracy, read from its metrics."""

from __future__ import annotations

import json
from pathlib import Path

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
