"""Checkpoints that a kill cannot spoil: written whole or not at all, and checked when read.

The first 16 digits of a checkpoint's sha256 stand in its name, so a damaged file is known for one.
The last two are kept: should the newest be damaged, the run goes on from the one before.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import warnings
from pathlib import Path
from typing import Any

import torch

FOLDER, KEPT = "checkpoints", 2
NAME = re.compile(r"step-(\d{6})-([0-9a-f]{16})\.pt")

State = dict[str, Any]


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint whose contents do not have the sum in its name; it was not used."""


class NoUsableCheckpointError(ValueError):
    """There are checkpoints, and every one of them is damaged."""


def save_checkpoint(run_dir: Path, step: int, state: State) -> Path:
    """Write the state after `step` atomically, then remove all but the newest two."""
    folder = run_dir / FOLDER
    folder.mkdir(exist_ok=True)
    buffer = io.BytesIO()
    torch.save({"step": step, **state}, buffer)
    content = buffer.getvalue()
    path = folder / f"step-{step:06d}-{hashlib.sha256(content).hexdigest()[:16]}.pt"
    temporary = folder / "writing.tmp"
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    for old in checkpoint_paths(run_dir)[KEPT:]:
        old.unlink()
    return path


def checkpoint_paths(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    paths = (run_dir / FOLDER).glob("step-*.pt")
    return sorted((p for p in paths if NAME.fullmatch(p.name)), reverse=True)


def load_checkpoint(run_dir: Path) -> State | None:
    """The newest undamaged checkpoint, or None where the run has none yet.

    A damaged one is named in a `DamagedCheckpointWarning` and removed, and the one before it is
    used.

    Raises:
        NoUsableCheckpointError: all are damaged.
    """
    paths = checkpoint_paths(run_dir)
    for position, path in enumerate(paths):
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest().startswith(NAME.fullmatch(path.name)[2]):
            for damaged in paths[:position]:  # or it would take the place of one that is kept
                damaged.unlink()
            return torch.load(io.BytesIO(content), weights_only=True)
        warnings.warn(
            f"{path.name} is damaged and was not used; going on from the one before it",
            DamagedCheckpointWarning,
            stacklevel=2,
        )
    if paths:
        raise NoUsableCheckpointError(
            f"all checkpoints in {run_dir} are damaged ({', '.join(p.name for p in paths)}); "
            "remove the folder and start the run again"
        )
    return None
