"""What keeps the signal alive: new groups for those without any, and a dial that follows.

A group whose answers all earn the same has advantages of 0 and teaches nothing. Dynamic sampling
(Yu et al., 2025, DAPO, section 3.2) asks new problems in its place; it costs rollouts. A dial that
follows the policy changes the problems instead, so that about half of the answers are right, where
p^G + (1 − p)^G is smallest; it changes what is trained on, and needs problems with a dial.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from einops import rearrange
from torch import Tensor

from gsmrl_helpers.advantages import groups_without_signal
from gsmrl_helpers.options import Baseline
from gsmrl_helpers.pocket_problems import load_pocket_problems
from gsmrl_helpers.problems import Problem
from gsmrl_helpers.rollouts import Rollouts, join_rollouts
from gsmrl_helpers.sampling import derive_seed
from gsmrl_helpers.world import problems_of_step

if TYPE_CHECKING:
    from gsmrl_helpers.loop import Trainer


def no_signal_probability(right_share: Tensor, group_size: int, baseline: Baseline) -> Tensor:
    """Chance that all G answers to a problem earn the same, p^G + (1 − p)^G.

    Without a baseline, a group of right answers has a signal: only (1 − p)^G is lost.

    Args:
        right_share: p of each problem, any shape.
        group_size: G.
        baseline: "mean" or "none".
    """
    all_right = right_share**group_size if baseline == "mean" else 0.0
    return all_right + (1 - right_share) ** group_size


def empty_groups(rollouts: Rollouts, baseline: Baseline = "mean") -> Tensor:
    """(P,) bool: which of the rollouts' groups have advantages of 0."""
    groups = rearrange(rollouts.rewards, "(p g) -> p g", g=rollouts.group_size)
    return rearrange(groups_without_signal(groups, baseline), "p 1 -> p")


def sample_with_signal(
    ask: Callable[[int, int], Rollouts], n_groups: int, extra_rounds: int, baseline: Baseline
) -> tuple[Rollouts, Rollouts]:
    """Dynamic sampling: groups without a signal make way for groups of new problems.

    Each round asks as many new problems as groups with a signal are missing. Where the rounds end
    before the batch is full, groups without a signal fill it up: they add nothing to the gradient,
    and the others weigh in it as they always do.

    Args:
        ask: `ask(number, n)` returns the rollouts of n new problems, for round `number` = 0, 1, ….
        n_groups: P groups that the batch needs.
        extra_rounds: rounds after the first, at most; with 0 the batch is what was sampled.
        baseline: of the advantages; it decides which groups have a signal.

    Returns:
        kept: P groups, in the order in which they were sampled.
        sampled: all groups, which is what the batch has cost.
    """
    rounds, n_missing = [], n_groups
    while n_missing and len(rounds) <= extra_rounds:
        rounds.append(ask(len(rounds), n_missing))
        n_missing -= int((~empty_groups(rounds[-1], baseline)).sum())
    sampled = join_rollouts(rounds)
    signal_first = empty_groups(sampled, baseline).int().argsort(stable=True)
    kept = signal_first[:n_groups].sort().values
    return sampled.select_groups(kept.tolist()), sampled


def move_dial(difficulty: float, right_share: float, rate: float, target: float = 0.5) -> float:
    """The dial after a step: harder after more than `target` right answers, easier after fewer.

    Args:
        difficulty: the present setting, from 0 to 1.
        right_share: of the answers sampled at this setting.
        rate: how far the dial moves for a share that is 1 above the target.
        target: the share of right answers to stay at.
    """
    return min(max(difficulty + rate * (right_share - target), 0.0), 1.0)


def signal_metrics(sampled: Rollouts, baseline: Baseline) -> dict[str, float]:
    """What a batch has cost, and how many of the sampled groups had a signal."""
    with_signal = (~empty_groups(sampled, baseline)).double()
    return {
        "sampled_responses": float(len(sampled.completions)),
        "sampled_signal_share": with_signal.mean().item(),
    }


# --- in a run ----------------------------------------------------------------------------------


def problems_of_round(
    trainer: Trainer, train: list[Problem], step: int, number: int, n: int
) -> list[Problem]:
    """What a step asks in its rounds: first the step's own problems, then n others of the split.

    A dial that moves leaves no fixed split: every round asks new problems at its setting.
    """
    config = trainer.config
    seed = derive_seed(config.seed, "problems of a round", step, number)
    if config.difficulty_rate:
        return load_pocket_problems("train", n, seed, trainer.difficulty)
    if number == 0:
        return problems_of_step(config, train, step)
    return random.Random(seed).sample(train, n)


def sample_batch(
    trainer: Trainer, train: list[Problem], step: int
) -> tuple[Rollouts, dict[str, float | None]]:
    """The rollouts that step `step` trains on, and metrics of all that were sampled for it.

    Where the run's dial follows the policy, it moves after the step's answers.
    """
    config = trainer.config

    def ask(number: int, n: int) -> Rollouts:
        purpose = "train" if number == 0 else f"train, round {number}"
        problems = problems_of_round(trainer, train, step, number, n)
        return trainer.sample(problems, config.group_size, purpose, step)

    kept, sampled = sample_with_signal(
        ask, config.prompts_per_step, config.dynamic_sampling_rounds, config.baseline
    )
    metrics = {f"train_{name}": value for name, value in sampled.metrics().items()}
    metrics |= {**signal_metrics(sampled, config.baseline), "difficulty": trainer.difficulty}
    if config.difficulty_rate:
        share, rate = metrics["train_mean_answer_reward"], config.difficulty_rate
        trainer.difficulty = move_dial(trainer.difficulty, share, rate, config.target_right_share)
    return kept, metrics
