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
from gsmrl_helpers.decoding import common_prefix_length
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.log_probs import get_response_log_probs
from gsmrl_helpers.loop import Trainer, mean_token_entropy, update_policy
from gsmrl_helpers.memory import LiveBytes
from gsmrl_helpers.prompt_tree import build_prompt_tree
from gsmrl_helpers.rollouts import Rollouts
from gsmrl_helpers.tokenization import encode, tokenize_prompt_and_output
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
    """How many tokens each pass takes through the model: through every one of its MLPs.

    A hook on all modules, since the update's halves have replicas of the model.
    """
    mlp, n_layers = type(model.model.layers[0].mlp), len(model.model.layers)
    calls: list[int] = []
    tokens: list[int] = []

    def count(module: torch.nn.Module, _: object, output: torch.Tensor) -> None:
        if isinstance(module, mlp):
            calls.append(output.shape[:-1].numel())

    hook = torch.nn.modules.module.register_module_forward_hook(count)
    try:
        yield tokens
    finally:
        hook.remove()
        passes = [calls[i : i + n_layers] for i in range(0, len(calls), n_layers)]
        assert all(len(layers) == n_layers and len(set(layers)) == 1 for layers in passes)
        tokens += [layers[0] for layers in passes]


def batch_and_rows(
    rollouts: Rollouts, trainer: Trainer
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The rollouts' tokens, and which rows have a gradient."""
    batch = tokenize_prompt_and_output(
        rollouts.prompts,
        [""] * len(rollouts.completions),
        trainer.tokenizer,
        output_token_ids=[c.token_ids for c in rollouts.completions],
    )
    batch["advantages"], _ = compute_group_normalized_rewards(rollouts.rewards, 8)
    return batch, rows_with_gradient(batch, Objective())


def unique_tokens(prompts: list[list[int]], n_response_tokens: int) -> int:
    """Tokens of a tree: what all prompts share, the rest of each, the responses."""
    template = 0
    while len({tuple(p[: template + 1]) for p in prompts}) == 1 and template + 1 < min(
        map(len, prompts)
    ):
        template += 1
    return template + sum(len(p) - template for p in prompts) + n_response_tokens


def test_sampling_takes_what_prompts_share_once_and_no_row_that_has_ended(trainer: Trainer) -> None:
    problems = problems_of_step(trainer.config, load_problems(trainer.config, "train"), 1)
    with tokens_through(trainer.model) as tokens, LiveBytes() as live:
        rollouts = trainer.sample(problems, trainer.config.group_size, "train", 1)
    prompts = [encode(trainer.tokenizer, prompt) for prompt in dict.fromkeys(rollouts.prompts)]
    template = common_prefix_length(prompts)
    suffixes = len(prompts) * (max(map(len, prompts)) - template)  # the one padding there is
    lengths = [len(completion.token_ids) for completion in rollouts.completions]
    # a row's first token comes with its prompt, and its last one is not read any more
    rows = [sum(length > t for length in lengths) for t in range(1, max(lengths))]
    assert tokens == [template, suffixes, *rows]
    shape = trainer.model.config
    width = shape.num_key_value_heads * shape.hidden_size // shape.num_attention_heads
    kept = template + suffixes + len(lengths) * trainer.config.sampling_max_tokens
    keys_and_values = 2 * shape.num_hidden_layers * width * 4 * kept
    assert keys_and_values < live.peak < 1.6 * keys_and_values


def test_an_update_takes_each_token_of_its_halves_once(
    trainer: Trainer, rollouts: Rollouts
) -> None:
    batch, rows = batch_and_rows(rollouts, trainer)
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
    batch, _ = batch_and_rows(rollouts, trainer)
    with tokens_through(trainer.model) as tokens:
        mean_token_entropy(trainer, rollouts)
    tree = build_prompt_tree(batch["input_ids"], batch["response_mask"])
    assert tokens == [len(tree.token_ids)]
    padding = sum(int((~block.is_token).sum()) for block in tree.responses)
    assert padding < 0.2 * len(tree.token_ids)  # in attention's blocks; the stream has none


def test_an_update_holds_less_than_half_of_a_plain_one(
    trainer: Trainer, rollouts: Rollouts
) -> None:
    batch, rows = batch_and_rows(rollouts, trainer)
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
