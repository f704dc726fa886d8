"""How far the run in a folder has come. Needs no torch, for which each run's process would wait."""

from __future__ import annotations

from pathlib import Path

from gsmrl_helpers.notebooks import read_notebook
from gsmrl_helpers.records import MANIFEST, METRICS, read_manifest, write_json

EXECUTED_NAME = "run.ipynb"
STAMP = "executed_sha256"  # papermill's copy of a notebook has it only where all cells ran


def is_finished(folder: Path) -> bool:
    """Whether the run's training is finished and all cells of its notebook have run."""
    return _is_trained(folder) and _notebook_is_whole(folder)


def _is_trained(folder: Path) -> bool:
    return (folder / MANIFEST).is_file() and read_manifest(folder)["status"] == "finished"


def _notebook_is_whole(folder: Path) -> bool:
    path = folder / EXECUTED_NAME
    return path.is_file() and STAMP in read_notebook(path).metadata.get("gsmrl", {})


def reopen(folder: Path) -> None:
    """Let a run go on that was stopped, or failed, between its last step and its last cell.

    It goes on from the checkpoint of its last step, so that nothing is trained again.
    """
    if _is_trained(folder) and not _notebook_is_whole(folder):
        write_json(folder / MANIFEST, {**read_manifest(folder), "status": "running"})


def steps_taken(folder: Path) -> int:
    """The last step that has a row of metrics; 0 where there is none yet."""
    path = folder / METRICS
    return max(0, path.read_bytes().count(b"\n") - 1) if path.is_file() else 0
