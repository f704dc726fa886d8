"""RLHF from end to end: imitate, learn a reward from pairs, optimize the policy against it.

The three stages of Ouyang et al., 2022 ("InstructGPT"), at the scale of a profile. The rater is the
verifier, so that it can be seen what answers are worth while a reward model pays for them. Left
out: the pretraining term of InstructGPT's objective, and a second round of ratings.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor

from gsmrl_helpers.live import live
from gsmrl_helpers.loop import Trainer, batches_of, score
from gsmrl_helpers.master_weights import make_optimizer
from gsmrl_helpers.packing import encode_example
from gsmrl_helpers.ppo import (
    PPOBatch,
    ValueModel,
    generalized_advantages,
    ppo_step,
    token_rewards,
    whiten,
)
from gsmrl_helpers.preferences import PreferencePair, verifier_pairs
from gsmrl_helpers.records import Row
from gsmrl_helpers.reward_model import RewardModel
from gsmrl_helpers.rollouts import Rollouts
from gsmrl_helpers.sft import SFTConfig, train_sft
from gsmrl_helpers.sft_runs import LEARNING_RATE, MAX_TOKENS, N_EXAMPLES, write_examples
from gsmrl_helpers.world import load_problems

N_RATED, N_ANSWERS, PAIRS_PER_PROMPT = 128, 8, 4  # problems, answers to each, pairs of each


def imitate(trainer: Trainer) -> None:
    """Stage 1: fine-tune the policy on worked solutions of the first train problems.

    The policy that comes out is the reference from here on, frozen.
    """
    config = trainer.config
    examples = write_examples(load_problems(config, "train")[:N_EXAMPLES], config.seed)
    documents = [
        encode_example(trainer.tokenizer, trainer.prompt.format(question), response)
        for question, response in examples
    ]
    settings = SFTConfig(seed=config.seed, max_tokens=MAX_TOKENS, learning_rate=LEARNING_RATE)
    n_steps = math.ceil(len(documents) / settings.batch_size)
    for _ in live(train_sft(trainer.model.eval(), documents, settings), total=n_steps):
        pass
    trainer.reference = copy.deepcopy(trainer.model).eval()


def rate_answers(
    trainer: Trainer, split: str = "train", n_problems: int = N_RATED
) -> list[PreferencePair]:
    """Pairs of the policy's answers to problems that it has not imitated, rated by the verifier.

    Args:
        split: whose problems are asked, those after the first `N_EXAMPLES`.
        n_problems: how many, with `N_ANSWERS` answers and at most `PAIRS_PER_PROMPT` pairs each.
    """
    problems = load_problems(trainer.config, split)[N_EXAMPLES : N_EXAMPLES + n_problems]
    rollouts = trainer.sample(problems, N_ANSWERS, f"rated {split}", 0)
    return verifier_pairs(rollouts, per_prompt=PAIRS_PER_PROMPT, seed=trainer.config.seed)


def paid_by(reward_model: RewardModel, rollouts: Rollouts) -> Rollouts:
    """The rollouts with the reward model's scores as rewards; the verifier's grades stay beside."""
    texts = [completion.text for completion in rollouts.completions]
    return replace(rollouts, rewards=reward_model.score(rollouts.prompts, texts))


def response_mask(trainer: Trainer, rollouts: Rollouts) -> Tensor:
    """(B, T) bool, the response tokens of the rollouts, all of one width."""
    return torch.cat([batch["response_mask"] for batch in batches_of(trainer, rollouts)])


def nats_from_reference(trainer: Trainer, rollouts: Rollouts) -> Tensor:
    """(B,) log π(y)/π_ref(y) of whole answers; their mean is the estimate k1 of KL(π || π_ref)."""
    log_probs = score(trainer, trainer.model, rollouts)
    ref_log_probs = score(trainer, trainer.reference, rollouts)
    differences = log_probs - ref_log_probs
    return differences.masked_fill(~response_mask(trainer, rollouts), 0.0).sum(dim=1)


class PPO:
    """The update of PPO, in the place of `loop.update_policy`, with the value model that it needs.

    Args:
        trainer: whose policy is updated; its `kl_coef` weighs the KL penalty in the rewards, its
            `train_batch_size` and `cliprange` are used as in GRPO.
        value_learning_rate: of the value model's AdamW.
        lam: λ of the advantages.
    """

    def __init__(
        self, trainer: Trainer, value_learning_rate: float = 3e-4, lam: float = 0.95
    ) -> None:
        self.trainer, self.lam = trainer, lam
        self.value_model = ValueModel(trainer.model)
        config = trainer.config.model_copy(update={"learning_rate": value_learning_rate})
        self.optimizer = make_optimizer(config, self.value_model.parameters())

    @torch.no_grad()
    def batch(self, rollouts: Rollouts) -> PPOBatch:
        """What is known of the rollouts before the update."""
        trainer = self.trainer
        batches = list(batches_of(trainer, rollouts))
        ids, labels, mask = (
            torch.cat([batch[name] for batch in batches])
            for name in ("input_ids", "labels", "response_mask")
        )
        log_probs = score(trainer, trainer.model, rollouts)
        ref_log_probs = score(trainer, trainer.reference, rollouts)
        rewards = token_rewards(
            rollouts.rewards.to(log_probs), log_probs, ref_log_probs, mask, trainer.config.kl_coef
        )
        values = self.value_model(ids, mask)
        advantages, returns = generalized_advantages(rewards, values, mask, lam=self.lam)
        return PPOBatch(ids, labels, mask, log_probs, values, whiten(advantages, mask), returns)

    def update(self, rollouts: Rollouts) -> Row:
        """One step of policy and value model on each train batch; means of `ppo_step`'s metrics,
        and `explained_variance`: the share of the returns' variance that the values predicted."""
        trainer, config = self.trainer, self.trainer.config
        batch = self.batch(rollouts)
        steps = [
            ppo_step(
                trainer.model,
                self.value_model,
                (trainer.optimizer, self.optimizer),
                batch.rows(start, start + config.train_batch_size),
                config.cliprange,
                config.max_grad_norm,
            )
            for start in range(0, len(rollouts.completions), config.train_batch_size)
        ]
        known = batch.returns[batch.response_mask]
        missed = known - batch.values[batch.response_mask]
        means = {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]}
        return {**means, "explained_variance": 1 - (missed.var() / known.var()).item()}
