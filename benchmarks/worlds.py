"""What is measured on: a random OLMo-2 of about a million parameters, and the pocket policy."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import Olmo2Config, Olmo2ForCausalLM, PreTrainedTokenizerFast

from benchmarks.timing import Scale
from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.engine import LocalEngine
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.loop import Trainer
from gsmrl_helpers.master_weights import make_optimizer
from gsmrl_helpers.problems import Problem
from gsmrl_helpers.prompting import Prompt
from gsmrl_helpers.rollouts import Rollouts
from gsmrl_helpers.world import load_problems, problems_of_step

VOCAB_SIZE, PROMPT_TOKENS = 300, 40
ROWS_AT_ONCE = 64
# Of 300 nearly equally likely tokens 13 end an answer: a limit of 64 is then used to a third.
N_STOPS, STOPS_FROM = 13, 1

Reward = Callable[[str, str], float]


@dataclass
class World:
    """A policy with its problems; `reward` grades a completion's text, given the gold."""

    name: str
    trainer: Trainer
    problems: list[Problem]
    reward: Reward
    graded_by_prompt: bool  # whether `Trainer.sample` gives that very reward already

    @property
    def prompts(self) -> list[str]:
        return [self.trainer.prompt.format(problem.question) for problem in self.problems]

    def sample(self, step: int = 1) -> Rollouts:
        """Rollouts of the present policy, graded."""
        rollouts = self.trainer.sample(
            self.problems, self.trainer.config.group_size, "benchmark", step
        )
        if self.graded_by_prompt:
            return rollouts
        pairs = zip(rollouts.completions, rollouts.problems, strict=True)
        rewards = [self.reward(completion.text, problem.gold) for completion, problem in pairs]
        return replace(rollouts, rewards=torch.tensor(rewards))

    def with_settings(self, **settings: Any) -> World:
        """The same policy under other settings of the run."""
        config = self.trainer.config.model_copy(update=settings)
        return replace(self, trainer=replace(self.trainer, config=config))

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Afterwards, policy and optimizer are what they were before."""
        state = deepcopy(self.trainer.state())
        try:
            yield
        finally:
            self.trainer.restore(state)


@contextmanager
def recorded_gradient(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module
) -> Iterator[list[Tensor]]:
    """A list that holds, after a step, the gradients which the optimizer stepped with."""
    gradient: list[Tensor] = []

    def record(*_: object) -> None:
        gradient[:] = [parameter.grad.clone() for parameter in model.parameters()]

    hook = optimizer.register_step_pre_hook(record)
    try:
        yield gradient
    finally:
        hook.remove()


def make_config(scale: Scale, **overrides: Any) -> RunConfig:
    """The pocket profile's settings, at a scale; advantages are divided as TRL does it."""
    n_rows = scale.n_prompts * scale.group_size
    return experiment_config(
        "on-policy",
        overrides={
            "rollout_batch_size": n_rows,
            "train_batch_size": n_rows,
            "group_size": scale.group_size,
            "gradient_accumulation_steps": max(1, n_rows // ROWS_AT_ONCE),
            "sampling_max_tokens": scale.max_tokens,
            "advantage_eps": 1e-4,
            **overrides,
        },
    )


def pocket_world(scale: Scale) -> World:
    """The pocket policy on its first problems: answers stop, many groups have no signal."""
    trainer = Trainer.from_config(make_config(scale))
    problems = problems_of_step(trainer.config, load_problems(trainer.config, "train"), 1)
    if scale.quick:  # its few short answers are never right, and no group would have a signal
        return World("pocket", trainer, problems, text_length, graded_by_prompt=False)
    reward_fn = trainer.prompt.reward_fn
    return World(
        "pocket",
        trainer,
        problems,
        lambda text, gold: float(reward_fn(text, gold)["reward"]),
        graded_by_prompt=True,
    )


def text_length(text: str, gold: str) -> float:
    """A reward that the answers of a group hardly ever have in common, and a whole number."""
    return float(len(text))


def random_world(
    scale: Scale,
    stops: bool,
    vocab_size: int = VOCAB_SIZE,
    prompt_tokens: int = PROMPT_TOKENS,
    dtype: torch.dtype = torch.float32,
) -> World:
    """Random weights and random words: answers end at a third of the limit, or all at the limit."""
    config = make_config(scale)
    tokenizer = word_tokenizer(vocab_size)
    model = random_policy(vocab_size, prompt_tokens + scale.max_tokens).to(dtype)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = (
        list(range(STOPS_FROM, STOPS_FROM + N_STOPS)) if stops else tokenizer.eos_token_id
    )
    draw = random.Random(0)
    problems = [
        Problem(
            " ".join(f"w{draw.randrange(20, vocab_size)}" for _ in range(prompt_tokens)), "", "0"
        )
        for _ in range(scale.n_prompts)
    ]
    trainer = Trainer(
        config,
        model,
        tokenizer,
        make_optimizer(config, model.parameters()),
        LocalEngine(model, tokenizer),
        Prompt("words", "{question}", "question_only"),
        reference=None,
    )
    name = "random, stops" if stops else "random, none stops"
    return World(name, trainer, problems, text_length, graded_by_prompt=False)


def random_policy(vocab_size: int, length: int) -> Olmo2ForCausalLM:
    """OLMo-2 with hidden 128, 4 layers, 4 heads, intermediate 512: a million parameters or so."""
    torch.manual_seed(0)
    shape = {"hidden_size": 128, "intermediate_size": 512}
    shape |= {"num_hidden_layers": 4, "num_attention_heads": 4}
    return Olmo2ForCausalLM(
        Olmo2Config(
            vocab_size=vocab_size,
            max_position_embeddings=max(length, 256),
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
            **shape,
        )
    ).train()


def word_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """One token a word, w1, w2, …; its <eos> is an id that the model cannot emit."""
    words = {"<pad>": 0, **{f"w{i}": i for i in range(1, vocab_size)}, "<eos>": vocab_size}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
