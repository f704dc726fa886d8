"""One step of TRL's `GRPOTrainer`, timed inside its own training loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from datasets import Dataset, disable_progress_bars
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.sampling import stopping_criteria
from benchmarks.timing import Run
from benchmarks.worlds import World, recorded_gradient
from gsmrl_helpers.rollouts import Rollouts

ROWS_AT_ONCE = 32  # the fastest of 8, 16, 32, 64 and 256 on two cores


class Stopwatch(TrainerCallback):
    """Seconds from the beginning of an optimizer step to its end, sampling included."""

    seconds = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds = time.perf_counter() - self.started


def grpo_config(world: World, loss_type: str, folder: str) -> GRPOConfig:
    """The world's settings as TRL's, and what makes TRL fastest on a CPU.

    In float32, nothing recomputed, and one pass over the rollouts, for which TRL needs no old
    log-probabilities.
    """
    config = world.trainer.config
    rows_at_once = min(ROWS_AT_ONCE, config.rollout_batch_size)
    return GRPOConfig(
        output_dir=folder,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=rows_at_once,
        gradient_accumulation_steps=config.rollout_batch_size // rows_at_once,
        num_generations=config.group_size,
        num_iterations=1,
        max_completion_length=config.sampling_max_tokens,
        temperature=config.sampling_temperature,
        top_p=config.sampling_top_p,
        top_k=0,
        beta=0.0,
        loss_type=loss_type,
        scale_rewards="none" if loss_type == "dr_grpo" else "group",
        learning_rate=config.learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=config.adam_betas[0],
        adam_beta2=config.adam_betas[1],
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        max_steps=1,
        shuffle_dataset=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


class TRLStep:
    """TRL's step on a copy of a world's policy: a contender, and the gradient that it steps with.

    Args:
        world: the policy, its prompts and its reward.
        loss_type: "grpo" or "dr_grpo".
        rollouts: what it is trained on in place of its own samples.
    """

    def __init__(self, world: World, loss_type: str, rollouts: Rollouts | None = None) -> None:
        disable_progress_bars()
        trainer = world.trainer
        self.folder, self.stopwatch = TemporaryDirectory(), Stopwatch()
        self.model = deepcopy(trainer.model)
        self.weights = deepcopy(self.model.state_dict())
        criteria = stopping_criteria(world)
        if criteria:  # TRL has no stop strings of its own; the padding after one ends the row
            self.model.generate = partial(self.model.generate, stopping_criteria=criteria)
            ends = self.model.generation_config.eos_token_id
            self.model.generation_config.eos_token_id = [ends, trainer.tokenizer.pad_token_id]
        rows = [
            {"prompt": p, "gold": q.gold}
            for p, q in zip(world.prompts, world.problems, strict=True)
        ]
        self.trl = GRPOTrainer(
            model=self.model,
            args=grpo_config(world, loss_type, self.folder.name),
            reward_funcs=reward_of(world) if rollouts is None else rewards_of(rollouts),
            train_dataset=Dataset.from_list(rows),
            processing_class=trainer.tokenizer,
            callbacks=[self.stopwatch],
            rollout_func=None if rollouts is None else given(trainer.tokenizer, rollouts),
        )
        self.trl.remove_callback(PrinterCallback)

    def __call__(self) -> Run:
        """One step from the world's own weights."""
        self.model.load_state_dict(self.weights)
        self.trl.train()
        return Run(self.stopwatch.seconds)

    def gradient(self) -> list[Tensor]:
        """What the optimizer gets of one step, by parameter."""
        self()  # makes the optimizer
        with recorded_gradient(self.trl.optimizer.optimizer, self.model) as gradient:
            self()
        return gradient


def reward_of(world: World) -> Callable[..., list[float]]:
    """The world's reward as TRL calls it."""

    def reward(completions: list[str], gold: list[str], **_: Any) -> list[float]:
        return [world.reward(text, answer) for text, answer in zip(completions, gold, strict=True)]

    return reward


def rewards_of(rollouts: Rollouts) -> Callable[..., list[float]]:
    """The rewards that the rollouts already have."""

    def reward(**_: Any) -> list[float]:
        return rollouts.rewards.tolist()

    return reward


def given(tokenizer: Any, rollouts: Rollouts) -> Callable[..., dict[str, Any]]:
    """A TRL rollout function that hands out these rollouts."""
    found = {
        "prompt_ids": tokenizer(rollouts.prompts, add_special_tokens=False)["input_ids"],
        "completion_ids": [completion.token_ids for completion in rollouts.completions],
        "logprobs": None,
    }

    def rollout_func(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        return dict(found)

    return rollout_func
