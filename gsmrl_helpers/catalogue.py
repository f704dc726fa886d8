"""The catalogue: what each experiment asks, its variants, its seeds, and the rule that judges it.

A variant is a function from a profile's settings to the few that it changes, so that every scale
has the same catalogue. Its docstring names the paper and the difference from standard GRPO. The
rules stood here before the runs of all experiments but on-policy, format-only and signal, and one
seed of three learning rates: of these the bars were set before, the wording came after. `verdicts`
and `rules` apply them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gsmrl_helpers.estimators import ESTIMATORS

Settings = dict[str, Any]
Variant = Callable[[Settings], Settings]


@dataclass(frozen=True)
class Experiment:
    """Variants that are compared, each once a seed.

    Attributes:
        question: what the experiment asks.
        rule: how the results answer it.
        variants: by name; the first is what the others are compared with.
        seeds: how many, 0, 1, ..., at pocket scale and at full scale.
        pocket_only: needs problems with a difficulty dial, which GSM8K's have not.
    """

    question: str
    rule: str
    variants: dict[str, Variant]
    seeds: tuple[int, int] = (4, 4)
    pocket_only: bool = False


def standard(profile: Settings) -> Settings:
    """GRPO with one update per rollout batch (Shao et al., 2024, DeepSeekMath; the assignment's
    section 4.3)."""
    return {}


def smoke(profile: Settings) -> Settings:
    """Two small steps that show that everything works; no experiment."""
    return {
        "n_grpo_steps": 2,
        "rollout_batch_size": 64,
        "train_batch_size": 64,
        "gradient_accumulation_steps": 2,
        "splits": {"curve": 32, "dev": 32, "test": 32},
        "validate_every": 1,
        "save_rollouts_every": 1,
        "checkpoint_every": 1,
    }


# --- one setting changed --------------------------------------------------------------------------

# Multiples of the profile's learning rate: one that is too low, ..., one that is too high.
LEARNING_RATE_MULTIPLES = (0.05, 0.3, 1.0, 3.0, 20.0)


def at_learning_rate(multiple: float) -> Variant:
    """Standard GRPO at a multiple of the profile's learning rate: no two scales share a rate."""
    return lambda profile: {"learning_rate": multiple * profile["learning_rate"]}


def with_prompt(prompt: str) -> Variant:
    """Standard GRPO under another prompt, with the reward and the stop string that belong to it."""
    return lambda profile: {"prompt": prompt}


def format_only(profile: Settings) -> Settings:
    """Standard GRPO, paid for nothing but the format: a reward to be hacked."""
    return {"reward": "r1_zero+format_only"}


# --- what keeps the signal alive ------------------------------------------------------------------


def fixed(profile: Settings) -> Settings:
    """Easy problems, which the policy soon solves: what becomes of the groups with a signal?"""
    return {
        "difficulty": 0.0,
        "n_grpo_steps": 60,
        "rollout_batch_size": 128,
        "train_batch_size": 128,
        "gradient_accumulation_steps": 2,
        "splits": {"curve": 128, "dev": 256, "test": 256},
        "validate_every": 20,
    }


def dynamic_sampling(profile: Settings) -> Settings:
    """`fixed`, and new problems for groups without a signal (Yu et al., 2025, DAPO)."""
    return {**fixed(profile), "dynamic_sampling_rounds": 4}


def following_dial(profile: Settings) -> Settings:
    """`fixed`, and a difficulty that follows the share of right answers."""
    return {**fixed(profile), "difficulty_rate": 0.2}


# --- variants of GRPO, on-policy ------------------------------------------------------------------


def longest_batch(settings: Settings) -> int:
    """Z = B·G·L_max, the tokens of a train batch in which no answer ends (Liu et al., 2025)."""
    return settings["train_batch_size"] * settings["sampling_max_tokens"]


def GRPO_constant(profile: Settings) -> Settings:
    """Standard GRPO, the summed loss divided by Z and not by each response's length."""
    return {"loss_normalization": "constant", "normalization_constant": longest_batch(profile)}


def Dr_GRPO(profile: Settings) -> Settings:
    """Dr. GRPO (Liu et al., 2025): `GRPO_constant` without the division by the group's std."""
    return {**GRPO_constant(profile), "advantage_normalizer": "none"}


def RFT(profile: Settings) -> Settings:
    """Rejection fine-tuning, or expert iteration (Anthony et al., 2017; Yuan et al., 2023):
    `Dr_GRPO` without a baseline, so that right answers are trained on and wrong ones are not."""
    return {**Dr_GRPO(profile), "baseline": "none"}


def MaxRL(profile: Settings) -> Settings:
    """MaxRL (Tajwar et al., 2026): `GRPO_constant`, divided by the group's mean reward. The paper
    divides the sum by the batch's tokens, here it is Z as for the others."""
    return {**GRPO_constant(profile), "advantage_normalizer": "mean"}


# --- off-policy: several updates for each batch of rollouts ---------------------------------------

UPDATES = 32  # optimizer steps on each batch of rollouts; fewer where it has fewer groups


def naive(profile: Settings) -> Settings:
    """Standard GRPO on 1/32 of the rollouts at a time, as if every one of them were fresh.

    Three tenths of the profile's rollout batches: they make 9.6 times its updates.
    """
    return {
        "n_grpo_steps": round(0.3 * profile["n_grpo_steps"]),
        "validate_every": max(1, profile["validate_every"] // 2),
        "train_batch_size": max(profile["rollout_batch_size"] // UPDATES, profile["group_size"]),
        "gradient_accumulation_steps": 1,
    }


def noclip(profile: Settings) -> Settings:
    """`naive`, each token weighed by its ratio π_θ/π_old (Schulman et al., 2015)."""
    return {**naive(profile), "importance_reweighting_method": "noclip"}


def clip(profile: Settings) -> Settings:
    """`noclip`, the ratio clipped at 1 ± .2 (Schulman et al., 2017, PPO; DeepSeekMath)."""
    return {**naive(profile), "importance_reweighting_method": "grpo", "cliprange": 0.2}


def gspo(profile: Settings) -> Settings:
    """GSPO (Zheng et al., 2025): the geometric mean of the response's ratios, clipped at
    1 ± 3e-4."""
    return {**naive(profile), "importance_reweighting_method": "gspo", "cliprange": 3e-4}


def cispo(profile: Settings) -> Settings:
    """CISPO (MiniMax-M1, 2025): no token loses its gradient, its weight is capped at 1.2."""
    return {**naive(profile), "importance_reweighting_method": "cispo", "cliprange": 0.2}


# --- an estimator of one's own --------------------------------------------------------------------


def with_estimator(name: str) -> Variant:
    """Standard GRPO with another advantage, a function of `gsmrl_helpers.estimators`."""
    return lambda profile: {"advantage_estimator": name}


PAIRED = (
    "Beside {0}, on final test accuracy: better or worse only where the paired 95 % t interval "
    "over the shared seeds excludes 0, else it can't be told."
)

EXPERIMENTS: dict[str, Experiment] = {
    "smoke": Experiment("Does everything work?", "It ends.", {"standard": smoke}, (1, 1)),
    "on-policy": Experiment(
        "Does standard GRPO teach the policy, and how far do seeds differ?",
        "It has learned where the mean final test accuracy passes the threshold, a quarter at "
        "full scale and .55 at pocket scale. A seed has collapsed that ends below half of the "
        "best seed's.",
        {"standard": standard},
    ),
    "learning-rate": Experiment(
        "Which learning rate, and where does it break?",
        "The rate with the best mean final accuracy on dev is chosen, and reported on test. Too "
        "low: below half of the chosen one's test accuracy and still rising at the end. Diverged: "
        "below half of it although the rate is higher.",
        {f"x{m:g}": at_learning_rate(m) for m in LEARNING_RATE_MULTIPLES},
    ),
    "prompt-ablation": Experiment(
        "Does the prompt that a policy starts from still matter after training?",
        PAIRED.format("r1_zero"),
        {
            "r1_zero": with_prompt("r1_zero"),
            "r1_zero_three_shot": with_prompt("r1_zero_three_shot"),
            "question_only": with_prompt("question_only"),
        },
    ),
    "format-only": Experiment(
        "What does a policy learn that is paid for the format alone?",
        "The reward is hacked where format passes .9 and the final test accuracy is below half of "
        "that of the full reward.",
        {"format_only": format_only},
    ),
    "signal": Experiment(
        "What keeps groups with a signal in the batch?",
        "The share of sampled groups with a signal, last twenty steps, two seeds: described, not "
        "judged.",
        {
            "fixed": fixed,
            "dynamic_sampling": dynamic_sampling,
            "following_dial": following_dial,
        },
        seeds=(2, 2),
        pocket_only=True,
    ),
    "variants": Experiment(
        "Do normalizer, baseline and aggregation matter?",
        PAIRED.format("GRPO")
        + " GRPO is the tuned one: a variant that is worse may only be untuned.",
        {
            "GRPO": standard,
            "GRPO_constant": GRPO_constant,
            "Dr_GRPO": Dr_GRPO,
            "RFT": RFT,
            "MaxRL": MaxRL,
        },
    ),
    "off-policy": Experiment(
        "What do 32 updates per rollout batch buy, and which weights keep them stable?",
        PAIRED.format("naive")
        + " Stability: the share of seeds whose final test accuracy is below half of the best "
        "run's, with its exact interval; two methods differ where the exact McNemar test says so "
        "at 5 %.",
        {"naive": naive, "noclip": noclip, "clip": clip, "gspo": gspo, "cispo": cispo},
        seeds=(8, 4),
    ),
    "own-estimator": Experiment(
        "Is our own estimator better than GRPO's?",
        PAIRED.format("standard"),
        {"standard": standard, **{name: with_estimator(name) for name in ESTIMATORS}},
        seeds=(8, 4),
    ),
}
