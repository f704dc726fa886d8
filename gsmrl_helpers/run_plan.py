"""The plan of a run before it starts: what each device must hold, and how long it all takes."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from rich.console import Group
from rich.text import Text
from transformers import AutoTokenizer

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.model_shape import ModelShape, model_shape
from gsmrl_helpers.planner import (
    BYTES,
    Parts,
    Workload,
    kv_bytes_per_token,
    peak,
    resident,
    trainer_phases,
)
from gsmrl_helpers.preflight import in_words
from gsmrl_helpers.step_time import StepTime
from gsmrl_helpers.tables import as_html, as_rich
from gsmrl_helpers.world import load_problems, policy_location

GB = 1e9
# What makers say, in GB of 1e9 bytes; drivers report up to 7 % more.
GPU_MEMORY = {
    "B200": 180 * GB,
    "H200": 141 * GB,
    "H100": 80 * GB,
    "RTX 4080": 16 * GB,
    "T4": 16 * GB,
}
GPU_OF_PROFILE = {
    "two_gpu": "H100",
    "rtx4080": "RTX 4080",
    "qwen_half_b": "RTX 4080",
    "one_gpu": "T4",
}
# Assumed, not counted: a CUDA context with its libraries, and what the allocator holds in reserve;
# as much for a server's working memory, and for one that sleeps.
CUDA_RESERVE = 1 * GB
SERVER_RESERVE = 1 * GB
# GSM8K's longest r1_zero prompt has 1,424 characters; of English about four make a token.
GSM8K_PROMPT_TOKENS = 384


@dataclass(frozen=True)
class DevicePlan:
    """What one device holds in each phase of a step, in bytes.

    Attributes:
        device: such as "cuda:0".
        use: "trains", "samples", or both.
        phases: bytes of each part in each phase.
        capacity: the device's memory, or a server's share of it; None where it is not known.
        note: what else there is to say.
        share: of the device's memory, for a server, which takes all of it.
    """

    device: str
    use: str
    phases: dict[str, Parts]
    capacity: float | None
    note: str = ""
    share: float | None = None

    @property
    def peak(self) -> tuple[str, float]:
        """The phase that needs most, and its bytes."""
        return peak(self.phases)

    @property
    def fits(self) -> bool | None:
        """Whether the peak is within the capacity; None where that is not known."""
        # A server's parts add up to its share, apart from the rounding of the sum.
        return None if self.capacity is None else self.peak[1] <= self.capacity * (1 + 1e-9)

    def table(self) -> pd.DataFrame:
        """GB of every part in every phase, with the sums."""
        table = pd.DataFrame(self.phases).fillna(0.0) / GB
        table.loc["sum"] = table.sum()
        texts = table.map(lambda gb: f"{gb:.3g}" if gb else "")
        return texts.rename_axis("GB").reset_index()

    def verdict(self) -> str:
        """One line: the peak, and whether it fits."""
        phase, n_bytes = self.peak
        if self.share is not None and self.fits:
            whole = self.capacity / self.share
            text = f"takes its share, {self.share:g} of {whole / GB:.0f} GB"
        else:
            text = f"{n_bytes / GB:.1f} GB at its peak ({phase})"
            if self.capacity is not None:
                verdict = "fits" if self.fits else "DOES NOT FIT"
                text += f" of {self.capacity / GB:.3g} GB: {verdict}"
        return f"{self.device} {self.use}: {text}" + (f"; {self.note}" if self.note else "")


@dataclass(frozen=True)
class RunPlan:
    """Memory and time of a run; a notebook and a terminal show it as tables."""

    config: RunConfig
    shape: ModelShape
    prompt_tokens: int
    devices: tuple[DevicePlan, ...]
    time: StepTime | None

    @property
    def fits(self) -> bool:
        """No device is known to be too small."""
        return all(device.fits is not False for device in self.devices)

    def lines(self) -> list[str]:
        """The plan in words."""
        config = self.config
        first = (
            f"{config.profile}: {config.policy}, {self.shape.n_parameters:,} parameters, "
            f"{config.dtype}, rows of up to {self.prompt_tokens} + "
            f"{config.sampling_max_tokens} tokens"
        )
        lines = [first, *(device.verdict() for device in self.devices)]
        lines += host_lines(config, self.shape)
        if not self.fits:
            lines.append(f"To need less: {', '.join(ways_to_need_less(config))}.")
        if (config.device, self.shape.architecture) == ("cpu", "olmo2"):
            lines.append(
                "On a CPU, OLMo-2 takes less: its rows share prompts there, and are planned whole."
            )
        if self.time is None:
            return [*lines, "Time: no speed was given; measure it there with --measure."]
        time = self.time
        return [
            *lines,
            f"Time: {in_words(time.step)} a step ({in_words(time.sampling)} sampling, "
            f"{in_words(time.scoring)} scoring, {in_words(time.training)} training), "
            f"{in_words(time.validation)} a validation, {in_words(time.run)} the whole run.",
        ]

    def __rich__(self) -> Group:
        tables = [as_rich(d.table(), f"{d.device} {d.use}") for d in self.devices]
        return Group(*tables, *(Text(line) for line in self.lines()))

    def _repr_html_(self) -> str:
        tables = "".join(as_html(device.table()) for device in self.devices)
        return tables + "<br>".join(self.lines())


def plan_run(
    config: RunConfig,
    *,
    prompt_tokens: int | None = None,
    gpu_memory: float | None = None,
    time: StepTime | None = None,
) -> RunPlan:
    """Plan a run.

    Args:
        config: the run's settings.
        prompt_tokens: of the longest prompt; None counts, or takes what is assumed for GSM8K.
        gpu_memory: bytes of each GPU; None takes those of the profile's kind.
        time: from `step_time`.

    Raises:
        ValueError: the policy's shape, or the GPU's memory, is not known.
    """
    shape = model_shape(policy_location(config))
    prompt_tokens = prompt_tokens or longest_prompt(config)
    devices = {config.device, config.vllm.device if config.engine == "vllm" else "cpu"}
    if gpu_memory is None and devices != {"cpu"}:
        if config.profile not in GPU_OF_PROFILE:
            raise ValueError(f"profile={config.profile!r} is for no GPU that is known: give --gpu")
        gpu_memory = GPU_MEMORY[GPU_OF_PROFILE[config.profile]]
    work = Workload.from_config(config, shape, prompt_tokens)
    return RunPlan(config, shape, prompt_tokens, plan_devices(config, work, gpu_memory), time)


def ways_to_need_less(config: RunConfig) -> list[str]:
    """Settings that are not yet what takes least memory."""
    ways = ["more gradient_accumulation_steps (fewer rows in a microbatch)"]
    if config.scored_at_once > 1:
        ways.append("fewer rows in scored_at_once")
    if config.master_weights:
        ways.append("master_weights=false")
    if not config.gradient_checkpointing:
        ways.append("gradient_checkpointing=true")
    if config.optimizer != "adamw_8bit":
        ways.append("optimizer=adamw_8bit")
    return ways if config.lora else [*ways, "lora"]


def plan_devices(
    config: RunConfig, work: Workload, gpu_memory: float | None
) -> tuple[DevicePlan, ...]:
    """The trainer's device, and the server's where it has its own."""
    phases = trainer_phases(work)
    at_rest = {**resident(work), "gradients": 0.0}
    reserve = {"CUDA": CUDA_RESERVE} if config.device.startswith("cuda") else {}
    trainer, shape = config.device, work.shape
    if config.engine == "local":
        cache = (
            config.rollout_batch_size
            * work.row_tokens
            * kv_bytes_per_token(shape, BYTES[work.dtype])
        )
        phases["sampling"] = {**at_rest, "KV cache": cache}
        use, others, note = "trains and samples", (), ""
    elif config.vllm.device == trainer and reserve:
        server = engine_plan(config, work, gpu_memory)
        (awake,) = server.phases.values()
        asleep = {"server asleep": SERVER_RESERVE}
        phases = {name: {**parts, **asleep} for name, parts in phases.items()}
        phases["sampling"] = {**at_rest, "server": sum(awake.values())}
        use, others, note = "trains and samples in turn", (), server.note
    else:
        use, others, note = "trains", (engine_plan(config, work, gpu_memory),), ""
    phases = {name: {**parts, **reserve} for name, parts in phases.items()}
    return (DevicePlan(trainer, use, phases, gpu_memory if reserve else None, note), *others)


def engine_plan(config: RunConfig, work: Workload, gpu_memory: float | None) -> DevicePlan:
    """The server's memory: weights, its reserve, and all the rest of its share for keys and values.

    Where that is less than one row needs, the server does not start.
    """
    server, e = config.vllm, BYTES[config.vllm.dtype_for(work.dtype)]
    weights = work.shape.n_parameters * e
    of_a_row = work.row_tokens * kv_bytes_per_token(work.shape, e)
    if server.device == "cpu":
        parts = {"weights": weights, "KV cache": server.cpu_kv_cache_gib * 2.0**30}
        capacity = share = None
    else:
        share = server.gpu_memory_utilization
        capacity = share * gpu_memory
        room = capacity - weights - SERVER_RESERVE
        parts = {"weights": weights, "CUDA": SERVER_RESERVE, "KV cache": max(room, of_a_row)}
    rows = parts["KV cache"] / of_a_row
    note = f"keys and values of {rows:.0f} rows of {work.row_tokens} tokens at once"
    return DevicePlan(server.device, "samples", {"sampling": parts}, capacity, note, share)


def host_lines(config: RunConfig, shape: ModelShape) -> list[str]:
    """What a server takes of the host's memory: weights on their way, and those of a sleeper."""
    server = config.vllm
    if config.engine == "local" or not (server.weight_sync == "reload" or server.sleep):
        return []
    e = BYTES[server.dtype_for(config.dtype)]
    weights = e * shape.n_parameters
    # A file has tied weights under each of their names; the last one lies there until it is whole.
    file = weights + e * shape.tied * shape.vocab_size * shape.hidden_size
    parts = {
        f"{file / GB:.3g} GB while a sync writes its file, and {2 * file / GB:.3g} GB in the "
        "temporary folder (memory, where that is a tmpfs)": server.weight_sync == "reload",
        f"{weights / GB:.3g} GB while the server sleeps": server.sleep,
    }
    return ["host memory: " + "; ".join(part for part, needed in parts.items() if needed)]


def longest_prompt(config: RunConfig) -> int:
    """Tokens of the longest prompt: counted over the pocket problems of `curve`, assumed for
    GSM8K, whose policies' tokenizers may not be there."""
    if config.problems == "gsm8k":
        return GSM8K_PROMPT_TOKENS
    tokenizer = AutoTokenizer.from_pretrained(policy_location(config))
    prompt = config.prompt_object()
    texts = [prompt.format(problem.question) for problem in load_problems(config, "curve")]
    return max(map(len, tokenizer(texts, add_special_tokens=False)["input_ids"]))
