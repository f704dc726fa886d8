"""Which profiles can run on a machine, and how long their runs took where they are on record.

Nothing here imports torch: `gsmrl doctor` also speaks where it can't be imported.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gsmrl_helpers.options import profile_names
from gsmrl_helpers.paths import RESULTS_DIR


@dataclass(frozen=True)
class Scale:
    """Whether a profile can run here, what it lacks, and how long a run takes."""

    profile: str
    lacks: str
    time: str


def find_scales(n_gpus: int, has_vllm: bool, problems: Sequence[str]) -> tuple[Scale, ...]:
    """All profiles, the pocket one first.

    Args:
        n_gpus: GPUs of the machine.
        has_vllm: whether an environment with vLLM is there.
        problems: what every profile lacks.
    """
    profiles = {name: read_profile_file(name) for name in profile_names()}
    runs = recorded_runs()
    return tuple(
        Scale(
            name,
            what_lacks(profile, n_gpus, has_vllm, problems),
            time_on_record(runs.get(name, [])),
        )
        for name, profile in sorted(profiles.items(), key=lambda item: item[0] != "pocket")
    )


def read_profile_file(name: str) -> dict[str, Any]:
    """A profile's settings as its file has them."""
    path = Path(__file__).with_name("profiles") / f"{name}.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def gpus_of(profile: Mapping[str, Any]) -> int:
    """GPUs that a profile names: the highest number among its devices, plus one."""
    devices = (profile["device"], profile.get("vllm", {}).get("device", "cpu"))
    numbers = [int(device.split(":")[1]) for device in devices if device.startswith("cuda:")]
    return max(numbers, default=-1) + 1


def what_lacks(
    profile: Mapping[str, Any], n_gpus: int, has_vllm: bool, problems: Sequence[str]
) -> str:
    """What a profile lacks here, in words; empty where it can run.

    Whether a GPU's memory suffices is not said here: `gsmrl plan` computes that.
    """
    lacks = list(problems)
    if gpus_of(profile) > n_gpus:
        lacks.append(f"{gpus_of(profile)} GPU{'s' * (gpus_of(profile) > 1)}, found {n_gpus}")
    if profile.get("engine") == "vllm" and not has_vllm:
        lacks.append("vLLM")
    return "; ".join(lacks)


def recorded_runs(folder: Path = RESULTS_DIR) -> dict[str, list[dict[str, Any]]]:
    """The manifests of finished standard GRPO runs on record, each once: profile -> manifests."""
    found: dict[str, dict[tuple, dict[str, Any]]] = defaultdict(dict)
    for path in sorted(folder.glob("*/*.manifest.json")):
        for run in json.loads(path.read_text(encoding="utf-8")).get("runs", []):
            config = run.get("config", {})
            is_standard = config.get("variant") == "standard" and config.get("n_grpo_steps")
            if run.get("wall_seconds") and is_standard:
                found[path.parent.name][config["seed"], run["started"]] = run
    return {profile: list(runs.values()) for profile, runs in found.items()}


def time_on_record(runs: Sequence[Mapping[str, Any]]) -> str:
    """How long the runs of a profile took where they were recorded, by kind of processor."""
    if not runs:
        return "none on record; gsmrl preflight predicts it"
    seconds = defaultdict(list)
    for run in runs:
        machine = run["machine"]
        threads = f"{machine['threads']} thread{'s' * (machine['threads'] != 1)}"
        seconds[machine["gpu"] or f"{machine['cpu_capability']}, {threads}"].append(
            run["wall_seconds"]
        )
    return "on record: " + "; ".join(
        f"{minutes(times)} ({where}, {len(times)} run{'s' * (len(times) > 1)})"
        for where, times in sorted(seconds.items())
    )


def minutes(seconds: Sequence[float]) -> str:
    """The shortest and the longest of these times."""
    ends = [f"{end / 60:.0f}" for end in (min(seconds), max(seconds))]
    return f"{' to '.join(dict.fromkeys(ends))} min"
