"""Train steps of random weights on random answers: what a step of some size takes, with nothing to
download. The planner is compared with them, on CPUs and on GPUs."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, Olmo2Config, PreTrainedModel, Qwen2Config

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.lora import add_lora
from gsmrl_helpers.master_weights import MasterWeights, make_optimizer
from gsmrl_helpers.memory import LiveBytes
from gsmrl_helpers.model_shape import ModelShape
from gsmrl_helpers.train_step import grpo_train_step

CONFIGS = {"olmo2": Olmo2Config, "qwen2": Qwen2Config}


class Numbers:
    """What a step asks of a tokenizer, for prompts that are written as numbers."""

    eos_token_id = pad_token_id = 0

    def encode(self, text: str, **_: Any) -> list[int]:
        return [int(word) for word in text.split()]


def random_policy(shape: ModelShape, config: RunConfig, attention: str = "sdpa") -> PreTrainedModel:
    """Random weights of this shape; dtype, device, adapters and checkpointing are the run's."""
    sizes = CONFIGS[shape.architecture](
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
    with torch.device(config.device):
        model = AutoModelForCausalLM.from_config(
            sizes, dtype=getattr(torch, config.dtype), attn_implementation=attention
        )
    if config.lora:
        model = add_lora(model, config.lora)
    if config.gradient_checkpointing:
        model.config.use_cache = False
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def take_random_step(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer | MasterWeights,
    config: RunConfig,
    prompt_tokens: int,
) -> None:
    """One step of the run on random rows, all as long as they may be; every second one is right."""
    n_rows, group_size = config.train_batch_size, config.group_size
    generator = torch.Generator().manual_seed(1)

    def draw(length: int) -> list[int]:
        return torch.randint(1, model.config.vocab_size, (length,), generator=generator).tolist()

    prompts = [" ".join(map(str, draw(prompt_tokens))) for _ in range(n_rows // group_size)]
    grpo_train_step(
        model,
        Numbers(),
        optimizer,
        config.gradient_accumulation_steps,
        config.max_grad_norm,
        None,
        [prompt for prompt in prompts for _ in range(group_size)],
        [""] * n_rows,
        [""] * n_rows,
        group_size,
        rollout_token_ids=[draw(config.sampling_max_tokens) for _ in range(n_rows)],
        raw_rewards=[float(row % 2) for row in range(n_rows)],
        entropy_coef=config.entropy_coef,
    )


def live_peak(
    model: PreTrainedModel, config: RunConfig, prompt_tokens: int, n_steps: int = 2
) -> int:
    """Peak bytes of real steps of the run, the optimizer included, the model's weights not."""
    with LiveBytes() as memory:
        optimizer = make_optimizer(config, model.parameters())
        for _ in range(n_steps):
            take_random_step(model, optimizer, config, prompt_tokens)
    return memory.peak
