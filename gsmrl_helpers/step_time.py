"""How long a run takes: its tokens divided by tokens per second, which somebody has measured."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.loop import Trainer
from gsmrl_helpers.model_shape import ModelShape
from gsmrl_helpers.preflight_measures import (
    n_validations,
    sample_steps,
    time_train_step,
    timed,
)
from gsmrl_helpers.rollouts import join_rollouts
from gsmrl_helpers.world import load_problems


class Throughput(BaseModel):
    """Speeds of a machine with a policy.

    Attributes:
        sampling_tokens_per_second: response tokens, all rows together.
        training_tokens_per_second: tokens of prompts and responses, forward and backward.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sampling_tokens_per_second: float = Field(gt=0, allow_inf_nan=False)
    training_tokens_per_second: float = Field(gt=0, allow_inf_nan=False)


class StepTime(BaseModel):
    """Seconds of the parts of a step, and of a whole run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sampling: float
    scoring: float
    training: float
    validation: float
    run: float

    @property
    def step(self) -> float:
        """Seconds of one step without validation."""
        return self.sampling + self.scoring + self.training


def step_time(
    config: RunConfig, speed: Throughput, prompt_tokens: float, response_tokens: float
) -> StepTime:
    """Seconds of a step whose responses all have a signal, of a validation, and of the run.

    A pass without gradients counts as a third of a training pass: 2 of 6 FLOPs a parameter and
    token (see `training_flops`). One is needed for old log-probabilities, to compare an engine's
    with, for a reference, and in a validation.

    Args:
        config: the run's settings.
        speed: measured on the machine that the run is for.
        prompt_tokens: mean tokens of a prompt.
        response_tokens: mean tokens of a response.
    """
    row_tokens = prompt_tokens + response_tokens
    n_rows = config.rollout_batch_size
    reuses_rollouts = (
        config.train_batch_size < n_rows
        or config.importance_reweighting_method != "none"
        or config.engine != "local"
    )
    n_passes = reuses_rollouts + bool(config.kl_coef)
    training = n_rows * row_tokens / speed.training_tokens_per_second
    sampling = response_tokens / speed.sampling_tokens_per_second
    per_problem = sampling + row_tokens / speed.training_tokens_per_second / 3
    n_problems = (
        n_validations(config) * config.splits.curve + config.splits.dev + config.splits.test
    )
    step = n_rows * sampling + training * (1 + n_passes / 3)
    return StepTime(
        sampling=n_rows * sampling,
        scoring=training * n_passes / 3,
        training=training,
        validation=config.splits.curve * per_problem,
        run=config.n_grpo_steps * step + n_problems * per_problem,
    )


def training_flops(shape: ModelShape, n_tokens: int, row_tokens: int) -> float:
    """FLOPs of a forward and a backward pass: 6 for every parameter in a matrix and every token,
    and 12 N H for every pair of a token and one that it attends to, half of a row's pairs.

    N layers, H the width of all heads (Chowdhery et al., 2022, "PaLM", appendix B, with the causal
    half). What checkpointing computes again is not counted, so that a share of a machine's peak
    speed (MFU) says how well it is used.
    """
    attention = 12 * shape.n_layers * shape.query_width * row_tokens / 2
    return n_tokens * (6 * shape.n_matrix_parameters + attention)


def measure_throughput(config: RunConfig, n_problems: int = 16) -> tuple[Throughput, float, float]:
    """A short measurement on this machine: groups of answers to a few problems, and train steps.

    Returns:
        The speeds, and the mean tokens of these prompts and responses.

    Raises:
        ValueError: more problems than the training split has.
    """
    if not 1 <= n_problems <= config.splits.train:
        raise ValueError(f"n_problems={n_problems}: give 1 to splits.train={config.splits.train}")
    trainer = Trainer.from_config(config)
    problems = load_problems(config, "train")[:n_problems]
    try:
        trainer.sample(problems[:1], 1, "warm-up", 0)  # the first call is slower than others
        batches, seconds = timed(lambda: sample_steps(trainer, problems))
        training_seconds = time_train_step(trainer, batches[0])
    finally:
        trainer.engine.close()
    rollouts = join_rollouts(batches)
    lengths = [len(completion.token_ids) for completion in rollouts.completions]
    prompts = trainer.tokenizer(rollouts.prompts, add_special_tokens=False)["input_ids"]
    response_tokens = sum(lengths) / len(lengths)
    prompt_tokens = sum(map(len, prompts)) / len(prompts)
    step_tokens = config.rollout_batch_size * (prompt_tokens + response_tokens)
    speed = Throughput(
        sampling_tokens_per_second=sum(lengths) / seconds,
        training_tokens_per_second=step_tokens / training_seconds,
    )
    return speed, prompt_tokens, response_tokens
