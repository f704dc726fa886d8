"""What a run acts on: the problems of its splits, and the policy it starts from."""

from __future__ import annotations

import random
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.gsm8k import load_gsm8k
from gsmrl_helpers.lora import add_lora
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.pocket_problems import load_pocket_problems
from gsmrl_helpers.problems import Problem, read_problems_jsonl
from gsmrl_helpers.sampling import derive_seed


def load_problems(config: RunConfig, split: str) -> list[Problem]:
    """The problems of one of the run's four splits: train, curve, dev or test.

    GSM8K has two files, and so has a folder of one's own: `train.jsonl` and `test.jsonl` in GSM8K's
    format (:func:`gsmrl_helpers.problems.problem_from_row`). `train` takes the first of the train
    file and `dev` the last, so that they must not overlap; `curve` takes the first of the test
    file, and `test` contains those.

    Raises:
        ValueError: an unknown split, splits larger than the files, or a broken row.
        FileNotFoundError: the folder lacks a file.
    """
    sizes = config.splits.model_dump()
    if split not in sizes:
        raise ValueError(f"split={split!r} is unknown; allowed: {', '.join(sizes)}")
    if config.problems == "pocket":
        return load_pocket_problems(split, sizes[split], difficulty=config.difficulty)
    file = "train" if split in ("train", "dev") else "test"
    if config.problems == "gsm8k":
        problems = load_gsm8k(file)
    else:
        problems = read_problems_jsonl(ROOT / config.problems / f"{file}.jsonl")
    needed = sizes["train"] + sizes["dev"] if split in ("train", "dev") else sizes[split]
    if needed > len(problems):
        raise ValueError(
            f"the splits {sizes} need {needed} problems, and {config.problems} has {len(problems)} "
            f"in its {file} file: make splits smaller, as in --set 'splits={{\"{split}\": 64}}'"
        )
    return problems[-sizes["dev"] :] if split == "dev" else problems[: sizes[split]]


@lru_cache(maxsize=2)
def epoch_order(run_seed: int, epoch: int, n_problems: int) -> list[int]:
    """The order in which one pass over the training split takes its problems."""
    rng = random.Random(derive_seed(run_seed, "problems", epoch))
    return rng.sample(range(n_problems), n_problems)


def problems_of_step(config: RunConfig, train: list[Problem], step: int) -> list[Problem]:
    """The step's problems: the training split, shuffled anew for every pass over it."""
    first = (step - 1) * config.prompts_per_step
    positions = range(first, first + config.prompts_per_step)
    places = [divmod(position, len(train)) for position in positions]
    return [train[epoch_order(config.seed, epoch, len(train))[at]] for epoch, at in places]


def policy_location(config: RunConfig) -> Path | str:
    """The policy's folder in the clone, or its name on the Hub where there is no such folder."""
    folder = ROOT / config.policy
    if config.policy.startswith("data/") and not folder.is_dir():
        raise ValueError(f"policy={config.policy!r}: the clone has no such folder")
    return folder if folder.is_dir() else config.policy


def load_policy(config: RunConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model, in training mode on its device, and the tokenizer.

    Raises:
        ValueError: what the settings ask for is not there: the GPU, its bf16, FlashAttention-2,
            peft. The message says what to set or to install.
    """
    location = policy_location(config)
    check_device(config)
    attention, why = choose_attention(config)
    if config.attention == "auto":
        print(f"policy: {config.policy}, {config.dtype} on {config.device}, {attention} ({why})")
    disable_progress_bar()  # its bars would stay in the notebooks' stored outputs
    model = AutoModelForCausalLM.from_pretrained(
        location, dtype=getattr(torch, config.dtype), attn_implementation=attention
    )
    if config.lora:
        model = add_lora(model, config.lora)
    if config.gradient_checkpointing:
        model.config.use_cache = False  # a cache of the recomputed pass would be of no use
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.to(config.device).train(), AutoTokenizer.from_pretrained(location)


def check_device(config: RunConfig) -> None:
    """Refuse a GPU that is not there, or bf16 on one that has none."""
    if not config.device.startswith("cuda"):
        return
    if not torch.cuda.is_available():
        raise ValueError(
            f"device={config.device!r}, but torch {torch.__version__} sees no CUDA device: use "
            "--profile pocket, or --set device=cpu"
        )
    if config.dtype == "bfloat16" and torch.cuda.get_device_capability(config.device) < (8, 0):
        raise ValueError(
            f"dtype=bfloat16, but {torch.cuda.get_device_name(config.device)} computes no bf16 "
            "(compute capability below 8.0): use --profile one_gpu, or --set dtype=float32"
        )


def choose_attention(config: RunConfig) -> tuple[str, str]:
    """The attention that the policy runs with, and why: `auto` takes FlashAttention-2 where it can.

    FlashAttention-2 (Dao, 2023) is a package of its own and runs 16-bit on GPUs from compute
    capability 8.0 on. SDPA is torch's own attention.

    Raises:
        ValueError: attention=flash_attention_2 where it can't run.
    """
    if config.attention in ("sdpa", "eager"):
        return config.attention, "as set"
    if not config.device.startswith("cuda"):
        obstacle = f"FlashAttention-2 needs a GPU, the device is {config.device}"
    elif config.dtype == "float32":
        obstacle = "FlashAttention-2 has no float32"
    elif find_spec("flash_attn") is None:
        obstacle = "flash-attn is not installed: pip install 'gsmrl-helpers[gpu]'"
    else:
        return "flash_attention_2", "as set" if config.attention != "auto" else "found"
    if config.attention == "flash_attention_2":
        raise ValueError(
            f"attention=flash_attention_2, but {obstacle}; set attention=auto or attention=sdpa"
        )
    return "sdpa", obstacle
