"""What a step of the pocket run costs, in model calls, tokens and bytes: counted, not timed.

Seconds depend on the machine; these don't, and whoever makes a step do more finds it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from transformers import PreTrainedModel

from gsmrl_helpers.accumulation import Objective, rows_with_gradient
from gsmrl_helpers.advantages import compute_group_normalized_rewards
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.log_probs import get_response_log_probs
from gsmrl_helpers.loop import Trainer, mean_token_entropy, update_policy
from gsmrl_helpers.memory import LiveBytes
from gsmrl_helpers.prompt_tree import build_prompt_tree
from gsmrl_helpers.rollouts import Rollouts
from gsmrl_helpers.tokenization import tokenize_prompt_and_output
from gsmrl_helpers.world import load_problems, problems_of_step


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """All tensors in this thread, where they are counted."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    config = experiment_config(
        "on-policy",
        overrides={"rollout_batch_size": 64, "train_batch_size": 64, "sampling_max_tokens": 32},
    )
    return Trainer.from_config(config)


@pytest.fixture(scope="module")
def rollouts(trainer: Trainer) -> Rollouts:
    problems = problems_of_step(trainer.config, load_problems(trainer.config, "train"), 1)
    return trainer.sample(problems, trainer.config.group_size, "train", 1)


@contextmanager
def tokens_through(model: PreTrainedModel) -> Iterator[list[int]]:
    """How many tokens each pass takes through the last layer."""
    tokens: list[int] = []
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, output: (
            tokens.append(output.numel() // output.shape[-1])
            if isinstance(module, type(model.model.layers[-1].mlp)) and is_last(module)
            else None
        )
    )
    # A replica's layers are others, in the same place.
    width = len(model.model.layers)
    calls = [0]

    def is_last(_: torch.nn.Module) -> bool:
        calls[0] += 1
        return calls[0] % width == 0

    try:
        yield tokens
    finally:
        hook.remove()


def batch_of(rollouts: Rollouts, trainer: Trainer) -> dict[str, torch.Tensor]:
    return tokenize_prompt_and_output(
        rollouts.prompts,
        [""] * len(rollouts.completions),
        trainer.tokenizer,
        output_token_ids=[c.token_ids for c in rollouts.completions],
    )


def unique_tokens(prompts: list[list[int]], n_response_tokens: int) -> int:
    """Tokens of a tree: what all prompts share, the rest of each, the responses."""
    template = 0
    while len({tuple(p[: template + 1]) for p in prompts}) == 1 and template + 1 < min(
        map(len, prompts)
    ):
        template += 1
    return template + sum(len(p) - template for p in prompts) + n_response_tokens


def test_an_update_takes_each_token_of_its_halves_once(
    trainer: Trainer, rollouts: Rollouts
) -> None:
    batch = batch_of(rollouts, trainer)
    batch["advantages"], _ = compute_group_normalized_rewards(rollouts.rewards, 8)
    rows = rows_with_gradient(batch, Objective())
    assert 8 <= len(rows) < 64  # some groups have no signal
    expected = []
    for half in rows.tensor_split(2):
        ids, mask = batch["input_ids"][half], batch["response_mask"][half]
        starts = mask.int().argmax(dim=1) + 1
        distinct = {tuple(row[:n]) for row, n in zip(ids.tolist(), starts.tolist(), strict=True)}
        lengths = mask.sum(dim=1) - 1  # the last token predicts nothing
        expected.append(unique_tokens([list(p) for p in distinct], int(lengths.sum())))
    with tokens_through(trainer.model) as tokens:
        update_policy(trainer, rollouts)
    assert tokens == expected
    assert sum(expected) < 0.4 * batch["input_ids"][rows].numel()


def test_a_validation_scores_each_token_once(trainer: Trainer, rollouts: Rollouts) -> None:
    batch = batch_of(rollouts, trainer)
    with tokens_through(trainer.model) as tokens:
        mean_token_entropy(trainer, rollouts)
    tree = build_prompt_tree(batch["input_ids"], batch["response_mask"])
    assert tokens == [len(tree.token_ids)]
    padding = sum(int((~block.is_token).sum()) for block in tree.responses)
    assert padding < 0.2 * len(tree.token_ids)  # in attention's blocks; the stream has none


def test_an_update_holds_less_than_half_of_a_plain_one(
    trainer: Trainer, rollouts: Rollouts
) -> None:
    batch = batch_of(rollouts, trainer)
    batch["advantages"], _ = compute_group_normalized_rewards(rollouts.rewards, 8)
    rows = rows_with_gradient(batch, Objective())
    with LiveBytes() as ours:
        update_policy(trainer, rollouts)
    half, _ = rows.tensor_split(2)
    with LiveBytes() as plain:
        scored = get_response_log_probs(
            trainer.model, batch["input_ids"][half], batch["labels"][half], True
        )
        scored["log_probs"].sum().backward()
    trainer.model.zero_grad(set_to_none=True)
    assert ours.peak < plain.peak / 2  # the optimizer's moments, made by this step, included
