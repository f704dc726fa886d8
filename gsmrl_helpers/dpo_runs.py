"""DPO on the answers that GRPO would sample in its first steps, recorded: one budget of samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.dpo import batches_of_pairs, dpo_step, pair_log_probs
from gsmrl_helpers.engine import evaluation_mode
from gsmrl_helpers.loop import Trainer, validate
from gsmrl_helpers.preferences import PreferencePair, verifier_pairs
from gsmrl_helpers.records import Row
from gsmrl_helpers.studies import Study, record_studies
from gsmrl_helpers.world import load_problems, problems_of_step

SAMPLED_STEPS = 20  # of GRPO's; their answers are the pairs' budget
EPOCHS, BATCH_SIZE, N_SEEDS = 8, 32, 4
BETAS = {"beta 0.1": 0.1, "beta 1": 1.0}
SPLITS = ("curve", "dev")


def sample_pairs(trainer: Trainer, n_steps: int = SAMPLED_STEPS) -> list[PreferencePair]:
    """A pair of each mixed group among the untrained policy's answers to the problems that GRPO
    meets in its first `n_steps` steps."""
    config, train = trainer.config, load_problems(trainer.config, "train")
    problems = [
        problem
        for step in range(1, n_steps + 1)
        for problem in problems_of_step(config, train, step)
    ]
    rollouts = trainer.sample(problems, config.group_size, "train", 1)
    return verifier_pairs(rollouts, per_prompt=1, seed=config.seed)


@torch.no_grad()
def reference_log_probs(trainer: Trainer, pairs: Sequence[PreferencePair]) -> tuple[Tensor, Tensor]:
    """(N,) log-probabilities of the chosen and of the rejected answers under the present policy."""
    size = max(1, trainer.config.scored_at_once // 2)
    with evaluation_mode(trainer.model):
        parts = [
            pair_log_probs(trainer.model, trainer.tokenizer, pairs[start : start + size])
            for start in range(0, len(pairs), size)
        ]
    chosen, rejected = zip(*parts, strict=True)
    return torch.cat(chosen), torch.cat(rejected)


def run_dpo(
    config: RunConfig, beta: float, epochs: int = EPOCHS, batch_size: int = BATCH_SIZE
) -> Iterator[Row]:
    """Sample once, then train on the pairs: metrics of each step, validation after each epoch."""
    trainer = Trainer.from_config(config)
    trainer.model.eval()  # the reference was scored without dropout, and so is the policy
    pairs = sample_pairs(trainer)
    reference = reference_log_probs(trainer, pairs)
    problems = {split: load_problems(config, split) for split in SPLITS}

    def validation(step: int) -> Row:
        rows = [validate(trainer, problems[split], split, step)[0] for split in SPLITS]
        return {name: value for row in rows for name, value in row.items()}

    yield {"step": 0, "pairs": len(pairs), **validation(0)}
    step = 0
    for epoch in range(1, epochs + 1):
        batches = list(batches_of_pairs(len(pairs), batch_size, config.seed, epoch))
        for batch in batches:
            step += 1
            row = dpo_step(
                trainer.model,
                trainer.tokenizer,
                trainer.optimizer,
                [pairs[i] for i in batch],
                (reference[0][batch], reference[1][batch]),
                beta,
                config.max_grad_norm,
            )
            due = batch is batches[-1]
            yield {"step": step, "epoch": epoch, **row, **(validation(step) if due else {})}


def record_dpo(profile: str, path: Path, jobs: int, fresh: bool) -> None:
    """DPO with each beta, four seeds each; about two minutes a run on one core at pocket scale."""
    studies = {
        name: Study(
            {"beta": beta, "epochs": EPOCHS, "batch_size": BATCH_SIZE},
            partial(run_dpo, beta=beta),
        )
        for name, beta in BETAS.items()
    }
    record_studies("dpo", studies, N_SEEDS, profile, path, jobs, fresh)
