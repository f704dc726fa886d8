"""What the runs of one machine share: its GPUs, in groups of as many as a run needs, its cores."""

from __future__ import annotations

import os

import torch

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.threads import allowed_cores

Slot = dict[str, str]  # environment variables of a run


def gpus_needed(config: RunConfig) -> int:
    """GPUs that a run must see: the highest number among its devices, plus one."""
    devices = [config.device, config.vllm.device if config.engine == "vllm" else "cpu"]
    indices = [torch.device(device).index or 0 for device in devices if device.startswith("cuda")]
    return max(indices) + 1 if indices else 0


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    count = torch.cuda.device_count()
    return named[:count] or [str(index) for index in range(count)]


def make_slots(n_gpus: int, jobs: int | None) -> list[Slot]:
    """One slot for each run that may go on at a time: what its process finds in its environment.

    Args:
        n_gpus: GPUs of a run; where it needs some, each slot has a group of its own.
        jobs: runs at a time; None is as many as there are groups of GPUs, and on a CPU one.

    Returns:
        slots; where there are several, they divide the cores among their threads.

    Raises:
        ValueError: there are fewer GPUs than that.
    """
    groups: list[Slot] = [{}] * (jobs or 1)
    if n_gpus:
        gpus = visible_gpus()
        firsts = range(0, len(gpus) - n_gpus + 1, n_gpus)
        groups = [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[i : i + n_gpus])} for i in firsts]
        if (at_a_time := jobs or 1) > len(groups):
            raise ValueError(
                f"{at_a_time} at a time of runs that need {n_gpus} GPUs each, but of the "
                f"{len(gpus)} visible ones {len(groups)} can run: give fewer --jobs, or a profile "
                "that needs fewer GPUs"
            )
        groups = groups[: jobs or len(groups)]
    if len(groups) == 1:
        return groups
    threads = str(max(1, len(allowed_cores()) // len(groups)))
    return [{**group, "OMP_NUM_THREADS": threads} for group in groups]
