"""What is measured before a run: what the policy does, how it is graded, how long it all takes."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pandas as pd
import torch
from einops import rearrange

from gsmrl_helpers.advantages import compute_group_normalized_rewards
from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.loop import Trainer, update_policy, validate
from gsmrl_helpers.numerals import names_number
from gsmrl_helpers.problems import Problem
from gsmrl_helpers.rollouts import Rollouts
from gsmrl_helpers.signal import no_signal_probability

T = TypeVar("T")


@dataclass(frozen=True)
class Shares:
    """What the policy does on the problems, each between 0 and 1.

    Attributes:
        right: answers with an answer reward of 1.
        in_format: the mean format reward.
        truncated: answers cut off by the limit on tokens.
        no_signal: groups whose advantages are all 0.
        no_signal_predicted: the mean of `no_signal_probability` over problems, p being a problem's
            own share of right answers. Too high: a p that comes from G answers is rough.
        no_signal_if_alike: the same with one p for all problems. Too low: difficulties differ.
    """

    right: float
    in_format: float
    truncated: float
    no_signal: float
    no_signal_predicted: float
    no_signal_if_alike: float


@dataclass(frozen=True)
class Speed:
    """What the machine does.

    Attributes:
        tokens_per_second: of sampling, all rows together.
        sampling_seconds: for the rollouts of one step.
        train_step_seconds: for the updates of one step, no response left out for want of signal.
        validation_seconds: for one problem.
    """

    tokens_per_second: float
    sampling_seconds: float
    train_step_seconds: float
    validation_seconds: float


# --- the policy and the problems ---------------------------------------------------------------


def sample_steps(trainer: Trainer, problems: Sequence[Problem]) -> list[Rollouts]:
    """Groups of answers to the problems, in batches as large as a step's."""
    size = trainer.config.prompts_per_step
    return [
        trainer.sample(
            list(problems[start : start + size]), trainer.config.group_size, "preflight", start
        )
        for start in range(0, len(problems), size)
    ]


def measure_shares(config: RunConfig, rollouts: Rollouts) -> Shares:
    """What the policy does on the problems of these rollouts."""
    size = rollouts.group_size
    right = (rollouts.answer_rewards >= 1).double()
    by_problem = rearrange(right, "(problem answer) -> problem answer", answer=size).mean(dim=1)
    _, groups = compute_group_normalized_rewards(
        rollouts.rewards, size, config.baseline, config.advantage_eps, config.advantage_normalizer
    )
    predicted = no_signal_probability(by_problem, size, config.baseline)
    return Shares(
        right=right.mean().item(),
        in_format=rollouts.format_rewards.mean().item(),
        truncated=rollouts.metrics()["truncated_share"],
        no_signal=groups["no_signal_group_share"],
        no_signal_predicted=predicted.mean().item(),
        no_signal_if_alike=no_signal_probability(right.mean(), size, config.baseline).item(),
    )


# --- the checker -------------------------------------------------------------------------------


def sample_checker(rollouts: Rollouts, n_examples: int, seed: int) -> pd.DataFrame:
    """A few answers of each kind: kind, n_of_kind, question, gold, response; for a person to read.

    Of most interest is the last kind: what the checker did not count although the gold number
    stands in it. Some of these are right by any reader's judgement, most name it by the way.
    """
    rows = pd.DataFrame(rollouts.rows())
    right, in_format = rows.answer_reward >= 1, rows.format_reward > 0
    golds = zip(rows.response, rows.gold, strict=True)
    names_gold = pd.Series([names_number(response, gold) for response, gold in golds])
    kinds = {
        "right": right,
        "in format, wrong": in_format & ~right,
        "not in format": ~in_format,
        "not right, names the gold number": names_gold & ~right,
    }
    rng = random.Random(seed)
    samples = []
    for kind, belongs in kinds.items():
        at = list(rows.index[belongs])
        chosen = rows.loc[sorted(rng.sample(at, min(n_examples, len(at))))]
        samples.append(chosen.assign(kind=kind, n_of_kind=len(at)))
    columns = ["kind", "n_of_kind", "question", "gold", "response"]
    return pd.concat(samples, ignore_index=True)[columns]


# --- the machine -------------------------------------------------------------------------------


def measure_speed(
    trainer: Trainer, problems: list[Problem], batches: Sequence[Rollouts], seconds: float
) -> Speed:
    """How fast the batches were sampled, in `seconds` altogether, and how fast the rest is."""
    completions = [completion for batch in batches for completion in batch.completions]
    n_tokens = sum(len(completion.token_ids) for completion in completions)
    _, validation_seconds = timed(lambda: validate(trainer, problems, "preflight", 0))
    return Speed(
        tokens_per_second=n_tokens / seconds,
        sampling_seconds=seconds * trainer.config.rollout_batch_size / len(completions),
        train_step_seconds=time_train_step(trainer, batches[0]),
        validation_seconds=validation_seconds / len(problems),
    )


def time_train_step(trainer: Trainer, rollouts: Rollouts) -> float:
    """Seconds of a step's updates, taken by a copy of the policy.

    The rewards are made up so that every group has a signal: as a run finds more of them, fewer
    responses are left out, and its steps become slower than its first.
    """
    model, optimizer = copy.deepcopy((trainer.model, trainer.optimizer))  # together: they share
    rehearsal = replace(trainer, model=model, optimizer=optimizer)
    n_rows = len(rollouts.completions)
    one_and_two = 1.0 + torch.arange(n_rows) % 2
    _, seconds = timed(lambda: update_policy(rehearsal, replace(rollouts, rewards=one_and_two)))
    return seconds * trainer.config.rollout_batch_size / n_rows


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of `work()`, and the seconds it took."""
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def predict_run_seconds(config: RunConfig, speed: Speed) -> float:
    """Seconds of the whole run: its steps, its validations, dev and test at its end."""
    step_seconds = speed.sampling_seconds + speed.train_step_seconds
    n_validated = (
        n_validations(config) * config.splits.curve + config.splits.dev + config.splits.test
    )
    return config.n_grpo_steps * step_seconds + n_validated * speed.validation_seconds


def n_validations(config: RunConfig) -> int:
    """How often a run validates: every `validate_every` steps from step 0 on, and at its end."""
    steps = range(config.n_grpo_steps + 1)
    return len({*steps[:: config.validate_every], steps[-1]})
