"""The training loop: sample, reward, update, validate, write down. One code path for every scale.

Step 0 only validates. Step s samples with the policy after s - 1 updates of the loop and updates
it; where it is due for validation, that follows its update. The last step also takes dev and test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gsmrl_helpers.checkpoints import load_checkpoint, save_checkpoint
from gsmrl_helpers.config import RunConfig, Splits
from gsmrl_helpers.data_parallel import accumulation
from gsmrl_helpers.engine import RolloutEngine, evaluation_mode
from gsmrl_helpers.engines import engine_metrics, make_engine
from gsmrl_helpers.estimators import advantage_options
from gsmrl_helpers.loggers import open_loggers
from gsmrl_helpers.master_weights import MasterWeights, make_optimizer
from gsmrl_helpers.problems import Problem
from gsmrl_helpers.prompting import Prompt
from gsmrl_helpers.records import (
    METRICS,
    Row,
    append_row,
    cut_metrics,
    finish_run,
    lock_run,
    open_run,
    policy_sha256,
    write_rollouts,
)
from gsmrl_helpers.response_scoring import score_responses
from gsmrl_helpers.rollouts import Rollouts, sample_rollouts
from gsmrl_helpers.sampling import derive_seed
from gsmrl_helpers.signal import sample_batch
from gsmrl_helpers.step_metrics import TokenMeans
from gsmrl_helpers.threads import choose_threads
from gsmrl_helpers.tokenization import tokenize_prompt_and_output
from gsmrl_helpers.train_step import grpo_train_step
from gsmrl_helpers.world import load_policy, load_problems, policy_location


@dataclass
class Trainer:
    """The policy and all that acts on it during a run."""

    config: RunConfig
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    optimizer: torch.optim.Optimizer | MasterWeights
    engine: RolloutEngine
    prompt: Prompt
    reference: PreTrainedModel | None  # frozen, only where there is a KL penalty
    difficulty: float | None = None  # of the present problems, where a dial follows the policy

    @classmethod
    def from_config(cls, config: RunConfig) -> Trainer:
        """Load the policy, and make the optimizer and the engine that samples from it."""
        torch.manual_seed(derive_seed(config.seed, "torch"))
        model, tokenizer = load_policy(config)
        optimizer = make_optimizer(config, model.parameters())
        reference = load_policy(config)[0].eval() if config.kl_coef else None
        engine = make_engine(config, model, tokenizer)
        prompt = config.prompt_object()
        return cls(
            config, model, tokenizer, optimizer, engine, prompt, reference, config.difficulty
        )

    def state(self) -> dict[str, Any]:
        """All that changes during a run. The draws of problems and tokens have no state: each
        follows from the run's seed and the step."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "torch_rng": torch.get_rng_state(),
            "difficulty": self.difficulty,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to what `state` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["torch_rng"])
        self.difficulty = state["difficulty"]

    def sample(self, problems: list[Problem], group_size: int, purpose: str, step: int) -> Rollouts:
        """Rollouts of the present policy, their random numbers set by the run's seed, the purpose
        and the step."""
        self.engine.sync_policy_weights(self.model)
        return sample_rollouts(
            self.engine,
            self.prompt,
            problems,
            group_size=group_size,
            seed=derive_seed(self.config.seed, purpose, step),
            temperature=self.config.sampling_temperature,
            top_p=self.config.sampling_top_p,
            max_tokens=self.config.sampling_max_tokens,
        )


def update_policy(trainer: Trainer, rollouts: Rollouts) -> Row:
    """One optimizer step on each train batch of the rollouts; the metrics are means over them."""
    config = trainer.config
    n_rows, size = len(rollouts.completions), config.train_batch_size
    reuses_rollouts = size < n_rows or config.importance_reweighting_method != "none"
    from_elsewhere = rollouts.completions[0].log_probs is not None
    log_probs = None
    if reuses_rollouts or from_elsewhere:
        log_probs = score(trainer, trainer.model, rollouts)
    # Never the engine's: a ratio must compare two states of one model, not two programs.
    old_log_probs = log_probs if reuses_rollouts else None
    ref_log_probs = score(trainer, trainer.reference, rollouts) if trainer.reference else None
    rewards, baseline, normalizer = advantage_options(config, rollouts.rewards)
    updates = []
    for start in range(0, n_rows, size):
        rows = slice(start, start + size)
        completions = rollouts.completions[rows]
        _, metadata = grpo_train_step(
            trainer.model,
            trainer.tokenizer,
            trainer.optimizer,
            config.gradient_accumulation_steps,
            config.max_grad_norm,
            None,
            rollouts.prompts[rows],
            [c.text for c in completions],
            [p.gold for p in rollouts.problems[rows]],
            config.group_size,
            baseline,
            config.advantage_eps,
            normalizer,
            config.importance_reweighting_method,
            None if old_log_probs is None else old_log_probs[rows],
            config.cliprange,
            config.loss_normalization,
            config.normalization_constant,
            rollout_token_ids=[c.token_ids for c in completions],
            raw_rewards=rewards[rows],
            kl_coef=config.kl_coef,
            ref_log_probs=None if ref_log_probs is None else ref_log_probs[rows],
            kl_estimator=config.kl_estimator,
            entropy_coef=config.entropy_coef,
            accumulate=accumulation(trainer.model.device.type, size),
        )
        updates.append(metadata)
    measured_on_rollouts = rollouts.metrics().keys()
    metrics = {
        name: mean_of_known([update[name] for update in updates])
        for name in updates[0]
        if name not in measured_on_rollouts
    }
    if from_elsewhere:
        mask = torch.cat([batch["response_mask"] for batch in batches_of(trainer, rollouts)])
        metrics |= engine_metrics(rollouts.completions, config.group_size, log_probs, mask)
    return metrics


def mean_of_known(values: list[float | None]) -> float | None:
    """The mean of the values that are not None, or None where none is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def batches_of(trainer: Trainer, rollouts: Rollouts) -> Iterator[dict[str, Tensor]]:
    """The rollouts' ids, labels and masks, all of one width, a few rows at a time."""
    batch = tokenize_prompt_and_output(
        rollouts.prompts,
        [c.text for c in rollouts.completions],
        trainer.tokenizer,
        output_token_ids=[c.token_ids for c in rollouts.completions],
    )
    for start in range(0, len(rollouts.completions), trainer.config.scored_at_once):
        rows = slice(start, start + trainer.config.scored_at_once)
        yield {name: tensor[rows].to(trainer.model.device) for name, tensor in batch.items()}


@torch.no_grad()
def score(trainer: Trainer, model: PreTrainedModel, rollouts: Rollouts) -> Tensor:
    """(B, T) log-probabilities of the response tokens under `model`, without dropout or graph.

    What stands at other positions has no meaning.
    """
    with evaluation_mode(model):
        scored = [
            score_responses(model, **batch)["log_probs"] for batch in batches_of(trainer, rollouts)
        ]
    return torch.cat(scored)


@torch.no_grad()
def mean_token_entropy(trainer: Trainer, rollouts: Rollouts) -> float | None:
    """Mean entropy, in nats, over all response tokens of the rollouts."""
    means = TokenMeans()
    with evaluation_mode(trainer.model):
        for batch in batches_of(trainer, rollouts):
            scored = score_responses(trainer.model, **batch)
            means.add({"entropy": scored["token_entropy"]}, batch["response_mask"])
    return means["entropy"]


def validate(
    trainer: Trainer, problems: list[Problem], split: str, step: int
) -> tuple[Row, Rollouts]:
    """One answer to each problem of a split: metrics named after the split, and the answers."""
    rollouts = trainer.sample(problems, 1, split, step)
    metrics = {**rollouts.metrics(), "token_entropy": mean_token_entropy(trainer, rollouts)}
    return {f"{split}_{name}": value for name, value in metrics.items()}, rollouts


def take_step(
    trainer: Trainer, problems: dict[str, list[Problem]], step: int, run_dir: Path
) -> Row:
    """Step `step` of a run: its update, its validation where due; rollouts are saved where due."""
    config = trainer.config
    last = step == config.n_grpo_steps
    saves = last or step % config.save_rollouts_every == 0
    row: Row = {"step": step}
    if step > 0:
        rollouts, metrics = sample_batch(trainer, problems["train"], step)
        row |= metrics | update_policy(trainer, rollouts)
        if saves:
            write_rollouts(run_dir, f"train-{step:06d}", rollouts.rows())
    due = ["curve"] if last or step % config.validate_every == 0 else []
    for split in due + ["dev", "test"] * last:
        metrics, answers = validate(trainer, problems[split], split, step)
        row |= metrics
        if saves:
            write_rollouts(run_dir, f"{split}-{step:06d}", answers.rows())
    return row


def train(
    config: RunConfig,
    run_dir: Path,
    on_row: Callable[[Row], None] | None = None,
    command: str = "gsmrl_helpers.train",
) -> Path:
    """Run GRPO as configured, in a folder that keeps everything the run produces.

    A run that was stopped goes on from its last checkpoint when it is started again with the same
    settings, and ends with the same parameters and the same rows.

    Args:
        config: the run's settings.
        run_dir: an empty or new folder, or that of the same run, unfinished.
        on_row: called with each step's row of metrics.
        command: what is written in the manifest as the way to run it again.

    Returns:
        `run_dir`, with `manifest.json`, `metrics.jsonl`, `rollouts/` and `checkpoints/`.

    Raises:
        RunFolderError: the folder belongs to another run, the run is finished, or another process
            is at it.
    """
    started = time.monotonic()
    with lock_run(run_dir), ExitStack() as stack:
        torch.set_num_threads(choose_threads(config.threads))
        manifest = open_run(run_dir, config, policy_sha256(policy_location(config)), command)
        # A run that goes on keeps its threads: with others, sums would round differently.
        torch.set_num_threads(manifest["machine"]["threads"])
        trainer = Trainer.from_config(config)
        stack.callback(trainer.engine.close)
        problems = {split: load_problems(config, split) for split in Splits.model_fields}
        state = load_checkpoint(run_dir) or {"step": -1, "metrics_size": 0, "seconds": 0.0}
        if state["step"] >= 0:
            trainer.restore(state)
        cut_metrics(run_dir, state["metrics_size"])
        log = stack.enter_context(open_loggers(config, run_dir))
        for step in range(state["step"] + 1, config.n_grpo_steps + 1):
            row = take_step(trainer, problems, step, run_dir)
            append_row(run_dir / METRICS, row)
            log(row)
            seconds = state["seconds"] + time.monotonic() - started
            if step % config.checkpoint_every == 0 or step == config.n_grpo_steps:
                size = (run_dir / METRICS).stat().st_size
                at = {"metrics_size": size, "seconds": seconds}
                save_checkpoint(run_dir, step, {**trainer.state(), **at})
            if on_row:
                on_row(row)
        finish_run(run_dir, state["seconds"] + time.monotonic() - started)
    return run_dir
