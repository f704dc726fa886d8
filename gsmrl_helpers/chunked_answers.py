"""Recordings of answers that take long: made in chunks, kept chunk by chunk, gone on with."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from pydantic import BaseModel

from gsmrl_helpers.paths import RUNS_DIR
from gsmrl_helpers.records import (
    ROLLOUTS,
    VERSIONED,
    append_row,
    git_commit,
    read_rows,
    write_json,
    write_results,
    write_rollouts,
)

SETTINGS, SECONDS = "settings.json", "seconds.jsonl"


def chunks_folder(path: Path, fresh: bool) -> Path:
    """Where the chunks of this recording are kept; `fresh` removes those there are."""
    folder = RUNS_DIR / "recordings" / path.parent.name / path.stem
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    return folder


def open_folder(folder: Path, settings: BaseModel) -> None:
    """Begin in a new folder, or go on in one of the same settings.

    Raises:
        ValueError: The folder holds answers of other settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / SETTINGS
    if not file.is_file():
        write_json(file, settings.model_dump(mode="json"))
    elif (there := type(settings).model_validate_json(file.read_text())) != settings:
        raise ValueError(
            f"{folder} holds rollouts of other settings, {there}; given {settings}. Remove it, or "
            "record with --fresh."
        )


def answer_in_chunks(
    chunks: Mapping[str, Callable[[], list[dict[str, Any]]]], settings: BaseModel, folder: Path
) -> pd.DataFrame:
    """The rows of all chunks, in their order; a chunk whose file is in `folder` is not made again.

    Args:
        chunks: by name, what makes a chunk's rows. They may not depend on other chunks.
        settings: all that decides the rows.
        folder: where each finished chunk is kept.

    Raises:
        ValueError: The folder holds answers of other settings.
    """
    open_folder(folder, settings)
    parts = []
    for name, make in chunks.items():
        file = folder / ROLLOUTS / f"{name}.jsonl"
        if not file.is_file():
            wall, cpu = time.monotonic(), time.process_time()
            write_rollouts(folder, name, make())
            row = {
                "chunk": name,
                "wall_seconds": time.monotonic() - wall,
                "cpu_seconds": time.process_time() - cpu,
            }
            append_row(folder / SECONDS, row)
        parts.append(pd.DataFrame(read_rows(file)))
    return pd.concat(parts, ignore_index=True)


def write_answers(
    table: pd.DataFrame, settings: BaseModel, policy_sha: str, folder: Path, path: Path
) -> None:
    """Write the rows, and the manifest of what made them and how long it took."""
    seconds = pd.DataFrame(read_rows(folder / SECONDS))[["wall_seconds", "cpu_seconds"]].sum()
    manifest = {
        "status": "finished",
        "command": f"gsmrl record {path.stem}",
        "config": settings.model_dump(mode="json"),
        "commit": git_commit(),
        "policy_sha256": policy_sha,
        "versions": {"python": platform.python_version(), **{p: version(p) for p in VERSIONED}},
        "machine": {"processor": platform.machine(), "threads": torch.get_num_threads()},
        **seconds.round(1),
    }
    write_results(table, path, {"runs": [manifest]})
