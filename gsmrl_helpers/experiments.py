"""The catalogue: an experiment is a set of named variants, a variant is a few changed settings."""

from __future__ import annotations

import json
import shlex
from typing import Any

from gsmrl_helpers.config import RunConfig, make_config, read_profile

Settings = dict[str, Any]

SMOKE: Settings = {
    "n_grpo_steps": 2,
    "rollout_batch_size": 64,
    "train_batch_size": 64,
    "gradient_accumulation_steps": 2,
    "splits": {"curve": 32, "dev": 32, "test": 32},
    "validate_every": 1,
    "save_rollouts_every": 1,
    "checkpoint_every": 1,
}

EASY: Settings = {
    "difficulty": 0.0,
    "n_grpo_steps": 60,
    "rollout_batch_size": 128,
    "train_batch_size": 128,
    "gradient_accumulation_steps": 2,
    "splits": {"curve": 128, "dev": 256, "test": 256},
    "validate_every": 20,
}

# Multiples of the profile's learning rate: one that is too low, ..., one that is too high.
LEARNING_RATE_MULTIPLES = (0.05, 0.3, 1.0, 3.0, 20.0)

EXPERIMENTS: dict[str, dict[str, Settings]] = {
    # Two small steps that show that everything works; no experiment.
    "smoke": {"standard": SMOKE},
    # GRPO as in DeepSeekMath (2024) and the assignment's section 4.3: one update per rollout batch.
    "on-policy": {"standard": {}},
    "learning-rate": {f"x{m:g}": {"learning_rate_multiple": m} for m in LEARNING_RATE_MULTIPLES},
    # Standard GRPO, paid for nothing but the format.
    "format-only": {"format_only": {"reward": "r1_zero+format_only"}},
    # Easy problems, which the policy soon solves: what becomes of the groups with a signal?
    "signal": {
        "fixed": EASY,
        "dynamic_sampling": {**EASY, "dynamic_sampling_rounds": 4},
        "following_dial": {**EASY, "difficulty_rate": 0.2},
    },
}


def variants_of(experiment: str) -> dict[str, Settings]:
    """The variants of an experiment; an unknown name is a ValueError that lists the known ones."""
    if experiment not in EXPERIMENTS:
        raise ValueError(f"experiment={experiment!r} is unknown; allowed: {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[experiment]


def run_command(
    experiment: str, profile: str, variant: str, seed: int, overrides: Settings | None = None
) -> str:
    """The command line that makes a run again."""
    words = ["gsmrl", "run", experiment, "--profile", profile, "--variants", variant]
    words += ["--seeds", str(seed)]
    for name, value in (overrides or {}).items():
        words += ["--set", f"{name}={json.dumps(value)}"]
    return shlex.join(words)


def experiment_config(
    experiment: str,
    profile: str = "pocket",
    variant: str = "standard",
    seed: int = 0,
    overrides: Settings | None = None,
) -> RunConfig:
    """The settings of one run of an experiment.

    A variant may give `learning_rate_multiple` in place of a learning rate, which no two scales
    have in common.
    """
    variants = variants_of(experiment)
    if variant not in variants:
        raise ValueError(
            f"variant={variant!r} is not in experiment {experiment!r}; allowed: "
            f"{', '.join(variants)}"
        )
    settings = dict(variants[variant])
    if (multiple := settings.pop("learning_rate_multiple", None)) is not None:
        settings["learning_rate"] = multiple * read_profile(profile)["learning_rate"]
    return make_config(profile, variant, seed, settings, overrides)
