"""A real train step on random weights, its live bytes counted, and what the planner says of it."""

from __future__ import annotations

import math

from transformers import PreTrainedModel

from gsmrl_helpers.config import make_config
from gsmrl_helpers.model_shape import ModelShape
from gsmrl_helpers.planner import Workload, resident, step_peak
from gsmrl_helpers.random_steps import live_peak, random_policy


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


def make_model(shape: ModelShape, **settings: object) -> PreTrainedModel:
    return random_policy(shape, make_config("pocket", overrides=settings))


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
    measured = live_peak(random_policy(shape, config), config, prompt_tokens)
    work = Workload.from_config(config, shape, prompt_tokens)
    assert work.microbatch_rows == math.ceil(n_rows / config.gradient_accumulation_steps)
    phase, n_bytes = step_peak(work)
    return measured, n_bytes - resident(work)["weights"], phase
