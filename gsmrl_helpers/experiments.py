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


# What would be the same run a second time: (experiment, variant) -> the one whose run it takes.
SHARED_RUNS = {("learning-rate", "x1"): ("on-policy", "standard")}

# Seeds 0, 1, ... of an experiment, at pocket scale and at full scale.
N_SEEDS = 4, 4
N_SEEDS_OF = {"smoke": (1, 1), "signal": (2, 2)}


def default_seeds(experiment: str, profile: str) -> list[int]:
    """The seeds that the catalogue asks for at a profile's scale."""
    at_pocket, at_full = N_SEEDS_OF.get(experiment, N_SEEDS)
    return list(range(at_pocket if is_pocket(profile) else at_full))


def real_experiments(profile: str) -> list[str]:
    """What `gsmrl run all` runs: no smoke test, and nothing that needs another scale's problems."""
    real = [name for name in EXPERIMENTS if name != "smoke"]
    return [name for name in real if is_pocket(profile) or not _needs_pocket(name)]


def is_pocket(profile: str) -> bool:
    """Whether a profile's problems are the generated ones."""
    return read_profile(profile)["problems"] == "pocket"


def _needs_pocket(experiment: str) -> bool:
    return any("difficulty" in settings for settings in EXPERIMENTS[experiment].values())


def shared_run(experiment: str, variant: str) -> tuple[str, str]:
    """The experiment and variant as which a run is run, once for all that show it."""
    return SHARED_RUNS.get((experiment, variant), (experiment, variant))


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
