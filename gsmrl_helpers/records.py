"""What a run leaves behind: a manifest, one row of metrics a step, rollouts, and the long table.

The one format of results is the long form `variant, seed, step, metric, value`; a metric that was
not computed is null, never 0.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from filelock import FileLock, Timeout

from gsmrl_helpers.paths import ROOT

if TYPE_CHECKING:
    from gsmrl_helpers.config import RunConfig

MANIFEST, METRICS, ROLLOUTS = "manifest.json", "metrics.jsonl", "rollouts"
LONG_COLUMNS = ["variant", "seed", "step", "metric", "value"]
VERSIONED = ("torch", "transformers", "tokenizers", "numpy", "pandas")

Row = dict[str, Any]


class RunFolderError(ValueError):
    """A folder that belongs to another run, or that is not a run's."""


class BrokenManifestError(RunFolderError):
    """A manifest that is no manifest: what the run was can't be known."""


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON so that the file is either the old one or the whole new one."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    os.replace(temporary, path)


def null_if_not_finite(value: Any) -> Any:
    """NaN and infinity as None: JSON has neither, and a reader must not take them for numbers."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def append_row(path: Path, row: Row) -> None:
    """Append one JSON line and have it on the disk before returning."""
    line = json.dumps({k: null_if_not_finite(v) for k, v in row.items()}, allow_nan=False)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(line + "\n")
        lines.flush()
        os.fsync(lines.fileno())


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSON-lines file; a damaged line is a ValueError that names it."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path.name}, line {number} is not JSON: {line[:80]!r}") from error
    return rows


def write_rollouts(run_dir: Path, name: str, rows: Iterable[Row]) -> None:
    """Write `rollouts/<name>.jsonl` whole, in place of a half-written one of the same step."""
    folder = run_dir / ROLLOUTS
    folder.mkdir(exist_ok=True)
    temporary = folder / f"{name}.tmp"
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    os.replace(temporary, folder / f"{name}.jsonl")


def read_rollouts(run_dir: Path, split: str, step: int) -> pd.DataFrame:
    """The rollouts that a run saved of a split at a step, one row a completion.

    Raises:
        ValueError: none were saved then; the message lists what there is.
    """
    path = run_dir / ROLLOUTS / f"{split}-{step:06d}.jsonl"
    if not path.is_file():
        saved = ", ".join(sorted(p.stem for p in (run_dir / ROLLOUTS).glob("*.jsonl")))
        raise ValueError(f"no rollouts of {split!r} were saved at step {step}; there are: {saved}")
    return pd.DataFrame(read_rows(path))


def policy_sha256(policy: Path | str) -> str:
    """The sha256 of a local policy's safetensors, or the name of a policy on the Hub."""
    folder = Path(policy)
    if not folder.is_dir():
        return str(policy)
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def git_commit() -> str | None:
    """The clone's commit, with `+` where tracked files have changed; None without git."""
    try:
        commit = _git("rev-parse", "HEAD")
        return commit + "+" * bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def make_manifest(config: RunConfig, policy_sha: str, command: str) -> dict[str, Any]:
    """Everything needed to run it again and to judge whether the same numbers can be expected."""
    import torch  # here, so that who only reads records need not wait for torch and transformers

    from gsmrl_helpers.world import choose_attention

    return {
        "status": "running",
        "command": command,
        "config": config.model_dump(mode="json"),
        "commit": git_commit(),
        "policy_sha256": policy_sha,
        "versions": {"python": platform.python_version(), **{p: version(p) for p in VERSIONED}},
        "machine": {
            "processor": platform.machine(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "attention": ", ".join(choose_attention(config)),
        },
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_seconds": None,
    }


def open_run(run_dir: Path, config: RunConfig, policy_sha: str, command: str) -> dict[str, Any]:
    """Begin a run in an empty folder, or go on with the unfinished run of the same settings there.

    Raises:
        RunFolderError: the folder holds a finished run, another run, or files of no run.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    if not any(run_dir.iterdir()):
        manifest = make_manifest(config, policy_sha, command)
        write_json(run_dir / MANIFEST, manifest)
        return manifest
    manifest = read_manifest(run_dir)
    given = {**config.model_dump(mode="json"), "policy_sha256": policy_sha}
    there = {**stored_config(manifest), "policy_sha256": manifest["policy_sha256"]}
    if differing := sorted(key for key in given if given[key] != there.get(key)):
        raise RunFolderError(
            f"{run_dir} holds another run (it differs in {', '.join(differing)}); "
            "choose an empty folder"
        )
    if manifest["status"] == "finished":
        raise RunFolderError(f"{run_dir} holds this run, finished; choose an empty folder")
    return manifest


def stored_config(manifest: Mapping[str, Any]) -> Row:
    """A manifest's settings, with the defaults of those that did not exist when it was written."""
    from gsmrl_helpers.config import RunConfig

    fields = RunConfig.model_fields.items()
    defaults = {name: field.default for name, field in fields if not field.is_required()}
    return {**defaults, **manifest["config"]}


@contextmanager
def lock_run(run_dir: Path, name: str = "lock") -> Iterator[None]:
    """Keep other processes out of a run's folder; a killed one leaves no lock behind.

    Args:
        run_dir: the run's folder; the lock is a file beside it.
        name: which lock: that of the run itself, or "launch.lock" of what launched its notebook.

    Raises:
        RunFolderError: another process is running into it.
    """
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(run_dir.with_name(f"{run_dir.name}.{name}"), blocking=False):
            yield
    except Timeout as error:
        raise RunFolderError(f"another process is running into {run_dir}; wait for it") from error


def finish_run(run_dir: Path, wall_seconds: float) -> None:
    """Mark the run finished in its manifest."""
    manifest = {**read_manifest(run_dir), "status": "finished"}
    write_json(run_dir / MANIFEST, {**manifest, "wall_seconds": round(wall_seconds, 1)})


def cut_metrics(run_dir: Path, size: int) -> None:
    """Cut metrics.jsonl back to the size it had at a checkpoint.

    What stands behind belongs to steps that will be taken again, and its last line may be half
    written.
    """
    path = run_dir / METRICS
    path.touch()
    if path.stat().st_size < size:
        raise RunFolderError(f"{path} is shorter than at the run's checkpoint: rows were lost")
    os.truncate(path, size)


def read_manifest(run_dir: Path) -> dict[str, Any]:
    """A run's manifest.

    Raises:
        RunFolderError: the folder has none, or as a `BrokenManifestError` one that can't be read.
    """
    path = run_dir / MANIFEST
    if not path.is_file():
        raise RunFolderError(f"{run_dir} holds no {MANIFEST}: it is not the folder of a run")
    try:
        manifest = json.loads(path.read_bytes())
        is_one = isinstance(manifest, dict) and {"config", "status"} <= {*manifest}
        problem = None if is_one else "no config or no status in it"
    except ValueError as error:
        problem = str(error)
    if problem:
        raise BrokenManifestError(
            f"{path} can't be read ({problem}): --fresh sets the folder aside and runs it again"
        )
    return manifest


def long_table(run_dir: Path) -> pd.DataFrame:
    """A run's metrics in the long form `variant, seed, step, metric, value`."""
    config = read_manifest(run_dir)["config"]
    table = pd.DataFrame(
        [
            (config["variant"], config["seed"], row["step"], metric, value)
            for row in read_rows(run_dir / METRICS)
            for metric, value in row.items()
            if metric != "step"
        ],
        columns=LONG_COLUMNS,
    )
    return table.astype({"seed": "int64", "step": "int64", "value": "float64"})


def write_results(table: pd.DataFrame, path: Path, manifest: Mapping[str, Any]) -> None:
    """Write a long table as parquet, and beside it the manifest of what made it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    table.to_parquet(temporary, index=False)
    os.replace(temporary, path)
    write_json(path.with_suffix(".manifest.json"), manifest)
