"""The reward model: one number at the last response token, trained on pairs; what it refuses."""

from __future__ import annotations

import pytest
import torch

from gsmrl_helpers.preferences import PreferencePair, bradley_terry_loss
from gsmrl_helpers.reward_model import (
    RewardModel,
    pair_scores,
    pairs_ranked_right,
    rows_of,
    shuffled,
    train_reward_model,
)
from tests.tiny_policy import make_policy, make_tokenizer

TOKENIZER = make_tokenizer()
PROMPTS = ["0=", "0=", "1+1="]
RESPONSES = ["0", "1 a 2", "bb"]


def make_model(seed: int = 0) -> RewardModel:
    """A reward model whose head is not 0."""
    model = RewardModel(make_policy(), TOKENIZER)
    torch.manual_seed(seed)
    torch.nn.init.normal_(model.head.weight)
    return model


def test_an_untrained_one_scores_everything_zero() -> None:
    model = RewardModel(make_policy(), TOKENIZER)
    assert model.score(PROMPTS, RESPONSES).tolist() == [0.0] * 3


def test_a_score_is_read_off_the_last_response_token() -> None:
    model, policy = make_model(), make_policy()
    scores = model.score(PROMPTS, RESPONSES)
    assert scores.shape == (3,) and scores.dtype == torch.float32 and not scores.requires_grad
    for prompt, response, score in zip(PROMPTS, RESPONSES, scores, strict=True):
        parts = [TOKENIZER.encode(text, add_special_tokens=False) for text in (prompt, response)]
        hidden = policy.model(torch.tensor([parts[0] + parts[1]])).last_hidden_state[0, -1]
        assert torch.allclose(score, model.head(hidden)[0], atol=1e-5)


def test_scores_do_not_depend_on_the_other_rows() -> None:
    model = make_model()
    together = model.score(PROMPTS, RESPONSES)
    assert torch.allclose(together, model.score(PROMPTS, RESPONSES, at_once=1), atol=1e-5)
    empty = model.score(["0=", "0="], ["", "1 a 2"])
    assert torch.allclose(empty[1], together[1], atol=1e-5) and empty.isfinite().all()


def test_the_policy_stays_as_it_is() -> None:
    policy = make_policy()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    train_reward_model(policy, TOKENIZER, PAIRS, n_epochs=1)
    assert all(torch.equal(before[name], value) for name, value in policy.state_dict().items())


def test_no_gradient_reaches_the_bias() -> None:
    model = make_model()
    bradley_terry_loss(*pair_scores(model, PAIRS)).backward()
    assert model.head.bias.grad.abs().item() < 1e-7 < model.head.weight.grad.abs().max().item()


PAIRS = [
    PreferencePair(f"{a}+{b}=", f"{a} a {b}", f"{a} b {b}") for a in range(3) for b in range(4)
]


def test_training_ranks_the_pairs_and_centres_the_scores() -> None:
    options = {"n_epochs": 8, "prompts_per_step": 4, "learning_rate": 1e-2, "seed": 1}
    model, losses = train_reward_model(make_policy(), TOKENIZER, PAIRS, **options)
    assert len(losses) == 24 and losses[0] == pytest.approx(0.6931, abs=1e-4)
    assert losses[-1] < 0.2 and pairs_ranked_right(model, PAIRS).all()
    prompts, responses = zip(*rows_of(PAIRS), strict=True)
    assert abs(model.score(prompts, responses).mean().item()) < 1e-5
    again, _ = train_reward_model(make_policy(), TOKENIZER, PAIRS, **options)
    assert torch.equal(again.head.weight, model.head.weight)


def test_an_answer_in_two_pairs_is_scored_once_and_stands_in_its_place() -> None:
    pairs = [PreferencePair("0=", "1", "2"), PreferencePair("0=", "1", "3")]
    model = make_model()
    chosen, rejected = pair_scores(model, pairs)
    scores = model.score(["0="] * 3, ["1", "2", "3"])
    assert torch.allclose(chosen, scores[[0, 0]]) and torch.allclose(rejected, scores[1:])


def test_the_pairs_of_a_prompt_stay_together_and_all_are_met() -> None:
    pairs = [PreferencePair(str(n % 5), "1", str(n)) for n in range(20)]
    steps = shuffled(pairs, 2, seed=0, epoch=0)
    assert [len(step) for step in steps] == [8, 8, 4]
    assert sorted(int(pair.rejected) for step in steps for pair in step) == list(range(20))
    assert steps != shuffled(pairs, 2, seed=0, epoch=1)
    assert steps == shuffled(pairs, 2, seed=0, epoch=0)


def test_what_makes_no_sense_is_refused() -> None:
    model = make_model()
    with pytest.raises(ValueError, match="got 1 prompts and 2 responses"):
        model.score(["0="], ["1", "2"])
    with pytest.raises(ValueError, match="at least one: got 0"):
        model.score([], [])
    with pytest.raises(ValueError, match="pairs is empty"):
        train_reward_model(make_policy(), TOKENIZER, [])
    with pytest.raises(ValueError, match="learning_rate=0"):
        train_reward_model(make_policy(), TOKENIZER, PAIRS, learning_rate=0)
