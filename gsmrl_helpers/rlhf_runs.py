"""RLHF at pocket scale, recorded: what the reward model says of the answers, and the verifier."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.loop import Trainer, update_policy
from gsmrl_helpers.records import Row
from gsmrl_helpers.reward_model import pairs_ranked_right, train_reward_model
from gsmrl_helpers.rlhf import PPO, imitate, nats_from_reference, paid_by, rate_answers
from gsmrl_helpers.rollouts import Rollouts
from gsmrl_helpers.studies import ANSWERS, Study, record_studies
from gsmrl_helpers.world import load_problems, problems_of_step

N_SEEDS, N_STEPS = 4, 25
UPDATES = {"GRPO": lambda trainer: partial(update_policy, trainer), "PPO": lambda t: PPO(t).update}
METHODS = {
    "GRPO, no KL": {"method": "GRPO", "kl_coef": 0.0},
    "GRPO, KL": {"method": "GRPO", "kl_coef": 0.3},
    "PPO, KL": {"method": "PPO", "kl_coef": 0.1},
}


def rlhf_config(name: str, profile: str = "pocket", seed: int = 0) -> RunConfig:
    """The settings of a recorded run: two steps on each batch of answers, at twice the profile's
    learning rate, as a reward model pays for nearly every answer and few steps are made.

    Raises:
        ValueError: an unknown method or profile.
    """
    if name not in METHODS:
        raise ValueError(f"method={name!r} is unknown; allowed: {', '.join(METHODS)}")
    config = experiment_config("on-policy", profile, seed=seed, overrides=overrides(name, profile))
    return config.model_copy(update={"variant": name})


def overrides(name: str, profile: str) -> dict[str, Any]:
    """What differs from standard GRPO in a method's runs."""
    standard = experiment_config("on-policy", profile)
    return {
        "n_grpo_steps": N_STEPS,
        "learning_rate": 2 * standard.learning_rate,
        "train_batch_size": standard.rollout_batch_size // 2,
        "importance_reweighting_method": "grpo",
        "cliprange": 0.2,
        "kl_coef": METHODS[name]["kl_coef"],
    }


def measured(trainer: Trainer, rollouts: Rollouts) -> Row:
    """The rollouts' metrics, and how far from the reference they are, in nats an answer."""
    return {**rollouts.metrics(), "kl": nats_from_reference(trainer, rollouts).mean().item()}


def run_rlhf(config: RunConfig, method: str) -> Iterator[Row]:
    """The three stages; a row a step of the third, with answers to read before and after.

    Yields:
        At step 0 `pairs` and `pairs_ranked_right` (of pairs from dev problems); at each later step
        the rollouts' metrics, in which `mean_reward` is the reward model's and `mean_answer_reward`
        the verifier's, `kl` (nats an answer) and the update's; at the first and the last step
        `curve_` metrics.
    """
    trainer = Trainer.from_config(config)
    imitate(trainer)
    pairs = rate_answers(trainer)
    model, _ = train_reward_model(trainer.model, trainer.tokenizer, pairs, seed=config.seed)
    held_out = pairs_ranked_right(model, rate_answers(trainer, "dev")).float().mean().item()
    curve, train = load_problems(config, "curve"), load_problems(config, "train")

    def asked(step: int) -> Row:
        rollouts = paid_by(model, trainer.sample(curve, 1, "curve", step))
        metrics = {f"curve_{name}": value for name, value in measured(trainer, rollouts).items()}
        return {**metrics, ANSWERS: rollouts.rows()}

    yield {"step": 0, "pairs": len(pairs), "pairs_ranked_right": held_out, **asked(0)}
    update = UPDATES[method](trainer)
    for step in range(1, config.n_grpo_steps + 1):
        problems = problems_of_step(config, train, step)
        rollouts = paid_by(model, trainer.sample(problems, config.group_size, "train", step))
        row = {"step": step, **measured(trainer, rollouts)}
        row |= update(rollouts)
        yield row | (asked(step) if step == config.n_grpo_steps else {})


def record_rlhf(profile: str, path: Path, jobs: int, fresh: bool) -> None:
    """Each method with four seeds; three to five minutes a run on one core at pocket scale."""
    studies = {
        name: Study(
            settings, partial(run_rlhf, method=settings["method"]), overrides(name, profile)
        )
        for name, settings in METHODS.items()
    }
    record_studies("rlhf", studies, N_SEEDS, profile, path, jobs, fresh)
