"""Copies of metrics.jsonl for those who watch runs: TensorBoard and Weights & Biases.

metrics.jsonl is the record; a logger begins with a copy of the rows that stand there. So a run that
goes on after a kill, whose record was cut back to a checkpoint, has each step once: what was
written of steps that are taken again, or was lost on its way to the disk, makes way for the copy.
Nothing leaves the machine unless the user has set WANDB_MODE.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.extras import import_extra
from gsmrl_helpers.records import METRICS, Row, read_manifest, read_rows, stored_config

Log = Callable[[Row], None]


@contextmanager
def open_loggers(config: RunConfig, run_dir: Path) -> Iterator[Log]:
    """What writes a row of metrics to each of the run's loggers; it begins with metrics.jsonl.

    Args:
        config: its `loggers` are opened, and closed at the end.
        run_dir: the run's folder, its metrics.jsonl cut back to what holds.

    Raises:
        ValueError: a logger's package is not there; the message names the extra.
    """
    with ExitStack() as stack:
        logs = [stack.enter_context(LOGGERS[name](run_dir)) for name in config.loggers]

        def log(row: Row) -> None:
            for log_to_one in logs:
                log_to_one(row)

        if logs:
            for row in read_rows(run_dir / METRICS):
                log(row)
        yield log


def known_values(row: Row) -> dict[str, float]:
    """The row's metrics that were computed: what is null in metrics.jsonl is left out."""
    return {
        metric: value
        for metric, value in row.items()
        if metric != "step" and value is not None and math.isfinite(value)
    }


@contextmanager
def tensorboard_log(run_dir: Path) -> Iterator[Log]:
    """Scalars in `<run_dir>/tensorboard`, named as in metrics.jsonl."""
    import_extra("tensorboard", "loggers=['tensorboard']")
    from torch.utils.tensorboard import SummaryWriter  # imports tensorboard, which may be absent

    folder = run_dir / "tensorboard"
    _remove(folder)
    # A TensorBoard that has been watching the folder forgets what it read of it before.
    with SummaryWriter(folder, purge_step=0) as writer:

        def log(row: Row) -> None:
            for metric, value in known_values(row).items():
                writer.add_scalar(metric, value, row["step"])
            writer.flush()

        yield log


@contextmanager
def wandb_log(run_dir: Path) -> Iterator[Log]:
    """A run of Weights & Biases in `<run_dir>/wandb`, offline unless WANDB_MODE says otherwise.

    `wandb sync <run_dir>/wandb/offline-run-*` uploads it. Online, a run that goes on is the same
    run there; steps that it has already are not sent again.
    """
    mode = os.environ.get("WANDB_MODE", "offline")
    if mode != "online":
        # Offline too, wandb asks for a telemetry server's address, unless this is off.
        os.environ["WANDB_ERROR_REPORTING"] = "false"
    wandb = import_extra("wandb", "loggers=['wandb']")
    _remove(run_dir / "wandb")
    config = stored_config(read_manifest(run_dir))
    with _own_process(run_dir / "wandb" / "cache"):
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "gsmrl-helpers"),
            id=run_id(run_dir),
            name=f"{config['variant']}, seed {config['seed']}",
            group=f"{config['profile']}, {config['variant']}",
            config=config,
            dir=run_dir,
            mode=mode,
            resume="allow" if mode == "online" else None,
            reinit="create_new",  # a run of the user's own in this process goes on
            settings=wandb.Settings(
                # the metrics, and nothing of the machine, its files, or what cells print
                **{"console": "off", "silent": True, "save_code": False, "disable_git": True},
                **{"disable_code": True, "x_disable_meta": True, "x_disable_stats": True},
                **{"x_disable_machine_info": True, "x_save_requirements": False},
            ),
        )
    first = run.starting_step  # online, after those that the server has; else 0

    def log(row: Row) -> None:
        if row["step"] >= first:
            run.log(known_values(row), step=row["step"])

    try:
        yield log
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish()


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def run_id(run_dir: Path) -> str:
    """The run's id at Weights & Biases: the same whenever it goes on, another for every run."""
    manifest = read_manifest(run_dir)
    begun = json.dumps([manifest["config"], manifest["policy_sha256"], manifest["started"]])
    return hashlib.sha256(begun.encode()).hexdigest()[:16]


@contextmanager
def _own_process(cache: Path) -> Iterator[None]:
    """Have wandb begin a process of its own for this one, which writes its log into `cache`.

    Without this, a run that is started from a process with a wandb run shares that one's process,
    which holds the id of a killed run as in use; and the log lies in the user's home.
    """
    before = dict(os.environ)
    os.environ.pop("WANDB_SERVICE", None)
    os.environ.setdefault("WANDB_CACHE_DIR", str(cache.resolve()))
    try:
        yield
    finally:
        for name in ("WANDB_SERVICE", "WANDB_CACHE_DIR"):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


LOGGERS: dict[str, Callable[[Path], AbstractContextManager[Log]]] = {
    "tensorboard": tensorboard_log,
    "wandb": wandb_log,
}
