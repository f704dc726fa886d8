"""A real train step on random weights, its live bytes counted, and what the planner says of it."""

from __future__ import annotations

import math

import torch
from transformers import AutoModelForCausalLM, Olmo2Config, PreTrainedModel, Qwen2Config

from gsmrl_helpers.config import LoraSettings, make_config
from gsmrl_helpers.lora import add_lora
from gsmrl_helpers.master_weights import make_optimizer
from gsmrl_helpers.memory import LiveBytes
from gsmrl_helpers.model_shape import ModelShape
from gsmrl_helpers.planner import Workload, peak, resident, trainer_phases
from gsmrl_helpers.train_step import grpo_train_step


class Numbers:
    """A tokenizer for prompts that are written as numbers."""

    eos_token_id = pad_token_id = 0

    def encode(self, text: str, **_: object) -> list[int]:
        return [int(word) for word in text.split()]


def small_shape(**changes: object) -> ModelShape:
    sizes = {
        "architecture": "olmo2",
        "vocab_size": 600,
        "hidden_size": 64,
        "intermediate_size": 192,
        "n_layers": 3,
        "n_heads": 4,
        "n_kv_heads": 4,
        "head_dim": 16,
        "tied": False,
    }
    return ModelShape(**{**sizes, **changes})


def make_model(shape: ModelShape, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Random weights of this shape, on the present device (and under the present mode)."""
    kind = {"olmo2": Olmo2Config, "qwen2": Qwen2Config}[shape.architecture]
    config = kind(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").train()


def checkpoint_activations(model: PreTrainedModel) -> None:
    model.config.use_cache = False
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def measured_and_planned(
    shape: ModelShape, n_rows: int = 8, prompt_tokens: int = 36, **settings: object
) -> tuple[int, float, str]:
    """Peak bytes of two real steps, those that the planner says, and its phase.

    The weights are made before the count, and so are left out of both.
    """
    changes = {
        "rollout_batch_size": n_rows,
        "train_batch_size": n_rows,
        "group_size": 4,
        "gradient_accumulation_steps": 2,
        "sampling_max_tokens": 12,
        **settings,
    }
    config = make_config("pocket", overrides=changes)
    model = make_model(shape, getattr(torch, config.dtype))
    if config.lora:
        model = add_lora(model, LoraSettings.model_validate(config.lora))
    if config.gradient_checkpointing:
        checkpoint_activations(model)
    prompt = " ".join(["5"] * prompt_tokens)
    with LiveBytes() as memory:
        optimizer = make_optimizer(config, model.parameters())
        for _ in range(2):
            grpo_train_step(
                model,
                Numbers(),
                optimizer,
                config.gradient_accumulation_steps,
                1.0,
                None,
                [prompt] * n_rows,
                [""] * n_rows,
                [""] * n_rows,
                4,
                rollout_token_ids=[[7] * config.sampling_max_tokens] * n_rows,
                raw_rewards=[float(row % 2) for row in range(n_rows)],
                entropy_coef=config.entropy_coef,
            )
    work = Workload.from_config(config, shape, prompt_tokens)
    assert work.microbatch_rows == math.ceil(n_rows / config.gradient_accumulation_steps)
    phases = {name: parts for name, parts in trainer_phases(work).items() if name != "scoring"}
    phase, n_bytes = peak(phases)
    return memory.peak, n_bytes - resident(work)["weights"], phase
