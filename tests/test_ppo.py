"""The parts of PPO against plain loops, known values and refusals."""

import pytest
import torch
from torch import Tensor

from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.ppo import (
    ValueModel,
    generalized_advantages,
    token_rewards,
    value_loss,
    whiten,
)
from gsmrl_helpers.tokenization import tokenize_prompt_and_output
from gsmrl_helpers.world import load_policy

MASK = torch.tensor([[0, 1, 1, 1, 0], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()


def draws(n: int) -> Tensor:
    return torch.randn(n, 3, 5, generator=torch.Generator().manual_seed(0)).double()


def test_token_rewards_sum_to_the_penalized_reward() -> None:
    log_probs, reference = draws(2)
    final = torch.tensor([1.0, -0.5, 7.0]).double()
    rewards = token_rewards(final, log_probs, reference, MASK, 0.2)
    ratio = ((log_probs - reference) * MASK).sum(dim=1)
    assert torch.allclose(rewards.sum(dim=1)[:2], final[:2] - 0.2 * ratio[:2])
    assert (rewards[~MASK] == 0).all() and (rewards[2] == 0).all()
    alone = token_rewards(final, log_probs, reference, MASK, 0.0)
    assert alone.nonzero().tolist() == [[0, 3], [1, 4]]
    assert alone[0, 3] == 1.0 and alone[1, 4] == -0.5


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (1.0, 0.0)])
def test_advantages_are_those_of_a_plain_sum(gamma: float, lam: float) -> None:
    rewards, values = draws(2)
    advantages, returns = generalized_advantages(rewards, values, MASK, gamma, lam)
    for row in range(2):
        places = MASK[row].nonzero().flatten().tolist()
        following = [values[row, t].item() for t in places[1:]] + [0.0]
        surprises = [
            rewards[row, t].item() + gamma * after - values[row, t].item()
            for t, after in zip(places, following, strict=True)
        ]
        for k, t in enumerate(places):
            plain = sum((gamma * lam) ** i * s for i, s in enumerate(surprises[k:]))
            assert advantages[row, t].item() == pytest.approx(plain, rel=1e-12)
    assert torch.equal(returns[MASK], (advantages + values)[MASK])
    assert (advantages[~MASK] == 0).all() and (returns[~MASK] == 0).all()


def test_with_lambda_1_an_advantage_is_what_came_out_less_what_was_predicted() -> None:
    rewards, values = draws(2)
    advantages, returns = generalized_advantages(rewards, values, MASK, 1.0, 1.0)
    to_come = (rewards * MASK).flip(1).cumsum(dim=1).flip(1)
    assert torch.allclose(returns[MASK], to_come[MASK])
    assert torch.allclose(advantages[MASK], (to_come - values)[MASK])


def test_a_right_prediction_leaves_no_advantage() -> None:
    final = torch.tensor([1.0, 0.5, 0.0])
    zero = torch.zeros(3, 5)
    rewards = token_rewards(final, zero, zero, MASK, 0.1)
    values = MASK * final[:, None]
    advantages, _ = generalized_advantages(rewards, values, MASK)
    assert advantages.abs().max() < 1e-6


def test_nothing_behind_the_mask_has_a_say() -> None:
    rewards, values = draws(2)
    found = generalized_advantages(rewards, values, MASK)
    noisy = [x.masked_fill(~MASK, float("nan")) for x in (rewards, values)]
    for one, other in zip(found, generalized_advantages(*noisy, MASK), strict=True):
        assert torch.equal(one, other)


def test_whitened_advantages_have_mean_0_and_std_1_over_tokens() -> None:
    (advantages,) = draws(1)
    white = whiten(5 + 3 * advantages, MASK)
    assert white[MASK].mean().abs() < 1e-9
    assert white[MASK].std(correction=0).item() == pytest.approx(1, rel=1e-6)
    assert (white[~MASK] == 0).all()
    with pytest.raises(ValueError, match="every response of this batch is empty"):
        whiten(advantages, torch.zeros_like(MASK))


def test_a_value_that_went_too_far_gets_no_gradient_that_takes_it_farther() -> None:
    old, returns, mask = torch.zeros(1, 4), torch.ones(1, 4), torch.ones(1, 4).bool()
    values = torch.tensor([[0.1, 0.5, -0.5, 2.0]], requires_grad=True)
    loss = value_loss(values, old, returns, mask, 0.2)
    loss.backward()
    # at .5 the clipped .2 has the larger error, and is a constant; at −.5 the value itself has it
    assert loss.item() == pytest.approx((0.9**2 + 0.8**2 + 1.5**2 + 1.0**2) / 8)
    assert values.grad[0].tolist() == pytest.approx([-0.9 / 4, 0.0, -1.5 / 4, 1.0 / 4])


def test_an_untrained_value_model_predicts_0_and_its_copy_leaves_the_policy_alone() -> None:
    policy, tokenizer = load_policy(experiment_config("on-policy"))
    batch = tokenize_prompt_and_output(["3+4=", "What is 2*9?"], [" 7.", " 2*9=18."], tokenizer)
    model, mask = ValueModel(policy.eval()), batch["response_mask"]
    values = model(batch["input_ids"], mask)
    assert values.shape == mask.shape and (values == 0).all()
    with torch.no_grad():
        model.head.weight.normal_(generator=torch.Generator().manual_seed(0))
        values = model(batch["input_ids"], mask)
        hidden = model.body.model(batch["input_ids"]).last_hidden_state
    assert torch.allclose(values[mask], model.head(hidden).squeeze(-1)[mask], atol=1e-4)
    assert (values[~mask] == 0).all()
    before = [p.clone() for p in policy.parameters()]
    model(batch["input_ids"], mask).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_wrong_numbers_and_shapes_are_refused() -> None:
    rewards, values = draws(2)
    with pytest.raises(ValueError, match=r"gamma=1\.5"):
        generalized_advantages(rewards, values, MASK, gamma=1.5)
    with pytest.raises(ValueError, match=r"lam=-0\.1"):
        generalized_advantages(rewards, values, MASK, lam=-0.1)
    with pytest.raises(ValueError, match="values"):
        generalized_advantages(rewards, values[:, :4], MASK)
    with pytest.raises(ValueError, match="kl_coef"):
        token_rewards(torch.zeros(3), rewards, values, MASK, -1.0)
    with pytest.raises(ValueError, match="final_rewards"):
        token_rewards(torch.zeros(2), rewards, values, MASK, 0.1)
