"""TensorBoard and Weights & Biases get each row once, change nothing, and stay off the network."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from gsmrl_helpers import experiment_config, train
from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.loggers import known_values, open_loggers, run_id
from gsmrl_helpers.records import METRICS, append_row, cut_metrics, open_run, read_rows

TINY = {
    "n_grpo_steps": 2,
    "rollout_batch_size": 16,
    "train_batch_size": 16,
    "splits": {"train": 32, "curve": 8, "dev": 8, "test": 8},
    "threads": 1,
}
ROWS = [{"step": step, "loss": step / 4, "mean_ratio": None} for step in range(4)]

needs_tensorboard = pytest.mark.skipif(
    find_spec("tensorboard") is None, reason="needs pip install 'gsmrl-helpers[tensorboard]'"
)
needs_wandb = pytest.mark.skipif(
    find_spec("wandb") is None, reason="needs pip install 'gsmrl-helpers[wandb]'"
)
BOTH = [
    pytest.param("tensorboard", marks=needs_tensorboard),
    pytest.param("wandb", marks=needs_wandb),
]


@pytest.fixture(autouse=True)
def no_mode_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")  # is put back; the logger must turn it off
    for name in ("WANDB_MODE", "WANDB_CACHE_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


def config_with(*loggers: str, **overrides: object) -> RunConfig:
    return experiment_config("smoke", overrides={**TINY, "loggers": list(loggers), **overrides})


def new_run(folder: Path, config: RunConfig) -> Path:
    open_run(folder, config, "sha", "gsmrl run smoke")
    cut_metrics(folder, 0)
    return folder


def read_tensorboard(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """Metric -> (step, value) of every event in the folder, in the order in which they stand."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    scalars: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((run_dir / "tensorboard").glob("events*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
    return scalars


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: seven bytes, then LevelDB's log format, blocks of 32 KiB."""
    position, parts = 7, []
    while position < len(content):
        if (left := -position % 2**15) < 7 and left:  # no header fits: the block was filled up
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        parts.append(content[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield b"".join(parts)
            parts = []


def read_wandb(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """The same of the history records of all of wandb's files in the folder."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # ends wandb's process, which writes a little longer than `finish` waits
    scalars: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((run_dir / "wandb").glob("*run-*/*.wandb")):
        for content in wandb_records(path.read_bytes()):
            history = Record.FromString(content).history
            for item in history.item:
                metric = item.key or item.nested_key[0]
                if not metric.startswith("_"):  # wandb's own, such as _timestamp
                    value = json.loads(item.value_json)
                    scalars.setdefault(metric, []).append((history.step.num, value))
    return scalars


READ = {"tensorboard": read_tensorboard, "wandb": read_wandb}


def stands_in_metrics(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    scalars: dict[str, list[tuple[int, float]]] = {}
    for row in read_rows(run_dir / METRICS):
        for metric, value in row.items():
            if metric != "step" and value is not None:
                scalars.setdefault(metric, []).append((row["step"], pytest.approx(value, rel=1e-6)))
    return scalars


# --- every logger ------------------------------------------------------------------------------


@pytest.mark.parametrize("logger", BOTH)
def test_each_known_value_is_written_once_at_its_step(logger: str, tmp_path: Path) -> None:
    config = config_with(logger)
    run = new_run(tmp_path / "run", config)
    with open_loggers(config, run) as log:
        for row in ROWS:
            append_row(run / METRICS, row)
            log(row)
    assert READ[logger](run) == {"loss": [(0, 0.0), (1, 0.25), (2, 0.5), (3, 0.75)]}


@pytest.mark.parametrize("logger", BOTH)
def test_steps_taken_again_stand_once_and_lost_ones_come_back(logger: str, tmp_path: Path) -> None:
    config = config_with(logger)
    run = new_run(tmp_path / "run", config)
    with open_loggers(config, run) as log:
        append_row(run / METRICS, ROWS[0])
        append_row(run / METRICS, ROWS[1])  # recorded, but the process ended before it was logged
        log(ROWS[0])
        size = (run / METRICS).stat().st_size
        append_row(run / METRICS, {"step": 2, "loss": 99.0})  # after the checkpoint
        log({"step": 2, "loss": 99.0})
    cut_metrics(run, size)
    with open_loggers(config, run) as log:
        for row in ROWS[2:]:
            log(row)
    assert READ[logger](run) == {"loss": [(0, 0.0), (1, 0.25), (2, 0.5), (3, 0.75)]}


@needs_tensorboard
@needs_wandb
def test_loggers_change_neither_tokens_nor_metrics(tmp_path: Path) -> None:
    plain = train(config_with(), tmp_path / "plain")
    logged = train(config_with("tensorboard", "wandb"), tmp_path / "logged")
    assert (logged / METRICS).read_bytes() == (plain / METRICS).read_bytes()
    for path in (plain / "rollouts").iterdir():
        assert (logged / "rollouts" / path.name).read_bytes() == path.read_bytes()
    for read in READ.values():
        assert read(logged) == stands_in_metrics(logged)
    made = {path.name for path in logged.iterdir()} - {path.name for path in plain.iterdir()}
    assert made == {"tensorboard", "wandb"}


KILLED = """
import sys, time
from pathlib import Path
from gsmrl_helpers import train
from tests.test_loggers import config_with

def wait_to_be_killed(row):
    if row["step"] == 2:
        print("now", flush=True)
        time.sleep(60)

config = config_with("tensorboard", "wandb", n_grpo_steps=3, checkpoint_every=2)
train(config, Path(sys.argv[1]), wait_to_be_killed if sys.argv[2] == "stop" else None)
"""


@pytest.mark.slow
@needs_tensorboard
@needs_wandb
def test_a_killed_run_goes_on_and_its_logs_are_whole(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def start(what: str) -> subprocess.Popen:
        command = [sys.executable, "-c", KILLED, str(run), what]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    process = start("stop")
    assert process.stdout.readline() == "now\n"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert start("go on").wait() == 0
    assert [row["step"] for row in read_rows(run / METRICS)] == [0, 1, 2, 3]
    for read in READ.values():
        assert read(run) == stands_in_metrics(run)


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("logger", ["tensorboard", "wandb"])
def test_a_missing_package_is_named_with_its_extra_before_anything_runs(
    logger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, logger, None)  # as if it were not installed
    with pytest.raises(ValueError, match=rf"needs {logger}.*pip install 'gsmrl-helpers\[{logger}"):
        config_with(logger)


def test_unknown_and_repeated_loggers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'tensorboard' or 'wandb'.*mlflow"):
        config_with("mlflow")
    with pytest.raises(ValueError, match="names one twice"):
        config_with("wandb", "wandb")


def test_a_run_from_before_there_were_loggers_goes_on(tmp_path: Path) -> None:
    config = config_with()
    open_run(tmp_path / "run", config, "sha", "x")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    del manifest["config"]["loggers"]
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    assert open_run(tmp_path / "run", config, "sha", "x")["status"] == "running"


def test_without_loggers_nothing_is_written(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", config_with())
    before = {path.name for path in run.iterdir()}
    with open_loggers(config_with(), run) as log:
        log(ROWS[0])
    assert {path.name for path in run.iterdir()} == before


def test_what_is_null_is_left_out() -> None:
    row = {"step": 3, "a": 0.0, "b": None, "c": float("nan"), "d": float("inf"), "e": 2}
    assert known_values(row) == {"a": 0.0, "e": 2}


# --- Weights & Biases --------------------------------------------------------------------------


LOOKUPS = """
import socket, sys
from pathlib import Path

def refuse(host, *rest, **options):
    print("asked for", host, file=sys.stderr, flush=True)
    raise socket.gaierror(f"no network: {host}")

socket.getaddrinfo = refuse
from tests.test_loggers import ROWS, config_with, new_run, open_loggers
config = config_with("wandb")
run = new_run(Path(sys.argv[1]), config)
with open_loggers(config, run) as log:
    for row in ROWS:
        log(row)
"""


@needs_wandb
def test_offline_no_address_is_asked_for_and_all_files_are_the_run_s(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    env = {**os.environ, "HOME": str(home)}
    started = time.time()
    command = [sys.executable, "-c", LOOKUPS, str(tmp_path / "run")]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "asked for" not in done.stderr, done.stderr
    assert not [path for path in home.rglob("*wandb*") if path.stat().st_mtime >= started - 1]
    assert read_wandb(tmp_path / "run")["loss"][-1] == (3, 0.75)


@contextmanager
def fake_wandb(monkeypatch: pytest.MonkeyPatch, starting_step: int) -> Iterator[SimpleNamespace]:
    """A wandb that keeps what it was asked for, in the place of the package."""
    seen = SimpleNamespace(options={}, steps=[], exit_codes=[])
    run = SimpleNamespace(
        starting_step=starting_step,
        log=lambda values, step: seen.steps.append(step),
        finish=lambda exit_code=0: seen.exit_codes.append(exit_code),
    )

    def init(**options: object) -> SimpleNamespace:
        seen.options = options
        return run

    fake = SimpleNamespace(init=init, Settings=lambda **settings: settings)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    yield seen


def test_the_mode_is_offline_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_wandb(monkeypatch, 0) as seen:
        config = config_with("wandb")
        run = new_run(tmp_path / "run", config)
        with open_loggers(config, run):
            assert seen.options["mode"] == "offline" and seen.options["resume"] is None
            assert os.environ["WANDB_ERROR_REPORTING"] == "false"
            assert "WANDB_CACHE_DIR" not in os.environ
        assert seen.options["dir"] == run and seen.options["id"] == run_id(run)
        assert seen.options["config"]["seed"] == 0


def test_online_a_run_goes_on_after_the_steps_that_the_server_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    with fake_wandb(monkeypatch, starting_step=2) as seen:
        config = config_with("wandb")
        run = new_run(tmp_path / "run", config)
        for row in ROWS[:3]:
            append_row(run / METRICS, row)
        with open_loggers(config, run) as log:
            log(ROWS[3])
        assert seen.options["mode"] == "online" and seen.options["resume"] == "allow"
        assert seen.steps == [2, 3] and seen.exit_codes == [0]
        assert os.environ["WANDB_ERROR_REPORTING"] == "true"  # the user's own choice


def test_a_run_that_fails_has_failed_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_wandb(monkeypatch, 0) as seen:
        config = config_with("wandb")
        run = new_run(tmp_path / "run", config)
        with pytest.raises(RuntimeError, match="out of memory"), open_loggers(config, run):
            raise RuntimeError("out of memory")
        assert seen.exit_codes == [1]


def test_the_id_is_kept_by_a_run_and_shared_by_no_two(tmp_path: Path) -> None:
    runs = [new_run(tmp_path / str(seed), experiment_config("smoke", seed=seed)) for seed in (0, 1)]
    assert run_id(runs[0]) == run_id(runs[0]) != run_id(runs[1])
    assert len(run_id(runs[0])) == 16
