"""A trainer of a tiny random policy, and an engine that says what a test wants, for its loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gsmrl_helpers import experiment_config, load_problems
from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.engine import Completion, LocalEngine
from gsmrl_helpers.loop import Trainer
from gsmrl_helpers.problems import Problem
from gsmrl_helpers.sampling import SamplingParams
from tests import tiny_sampler

TINY = {
    "n_grpo_steps": 4,
    "rollout_batch_size": 16,
    "train_batch_size": 16,
    "group_size": 4,
    "sampling_max_tokens": 12,
    "splits": {"train": 32, "curve": 8, "test": 8},
}


def tiny_config(**overrides: object) -> RunConfig:
    return experiment_config("smoke", overrides={**TINY, **overrides})


def make_trainer(config: RunConfig, **model_changes: object) -> Trainer:
    """In training mode, as `Trainer.from_config` loads it."""
    tokenizer = tiny_sampler.make_tokenizer()
    model = tiny_sampler.make_olmo2(
        len(tokenizer), max_position_embeddings=1024, **model_changes
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    engine = LocalEngine(model, tokenizer)
    return Trainer(config, model, tokenizer, optimizer, engine, config.prompt_object(), None)


class SayingEngine:
    """Completes each prompt with `say(problem, sample_index)`."""

    def __init__(self, trainer: Trainer, say: Callable[[Problem, int], str]) -> None:
        self.tokenizer, self.say = trainer.tokenizer, say
        problems = load_problems(trainer.config, "train")
        self.problem_of = {trainer.prompt.format(p.question): p for p in problems}

    def generate_completions(
        self, prompts: Sequence[str], sampling_params: SamplingParams, batch_size: int | None = None
    ) -> list[Completion]:
        return [
            Completion(text, self.tokenizer.encode(text), "stop", prompt_index, sample_index)
            for prompt_index, prompt in enumerate(prompts)
            for sample_index in range(sampling_params.n)
            for text in [self.say(self.problem_of[prompt], sample_index)]
        ]

    def sync_policy_weights(self, policy: torch.nn.Module) -> None:
        pass
