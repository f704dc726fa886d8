"""The catalogue: an experiment is a set of named variants, a variant is a few changed settings."""

from __future__ import annotations

from typing import Any

from gsmrl_helpers.config import RunConfig, make_config

Settings = dict[str, Any]

SMOKE: Settings = {
    "n_grpo_steps": 2,
    "rollout_batch_size": 64,
    "train_batch_size": 64,
    "gradient_accumulation_steps": 2,
    "splits": {"curve": 32, "test": 32},
    "validate_every": 1,
    "save_rollouts_every": 1,
    "checkpoint_every": 1,
}

EXPERIMENTS: dict[str, dict[str, Settings]] = {
    # Two small steps that show that everything works; no experiment.
    "smoke": {"standard": SMOKE},
    # GRPO as in DeepSeekMath (2024) and the assignment's section 4.3: one update per rollout batch.
    "on-policy": {"standard": {}},
}


def variants_of(experiment: str) -> dict[str, Settings]:
    """The variants of an experiment; an unknown name is a ValueError that lists the known ones."""
    if experiment not in EXPERIMENTS:
        raise ValueError(f"experiment={experiment!r} is unknown; allowed: {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[experiment]


def experiment_config(
    experiment: str,
    profile: str = "pocket",
    variant: str = "standard",
    seed: int = 0,
    overrides: Settings | None = None,
) -> RunConfig:
    """The settings of one run of an experiment."""
    variants = variants_of(experiment)
    if variant not in variants:
        raise ValueError(
            f"variant={variant!r} is not in experiment {experiment!r}; allowed: "
            f"{', '.join(variants)}"
        )
    return make_config(profile, variant, seed, variants[variant], overrides)
