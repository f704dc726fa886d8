"""The sorting toy: its parts against numbers by hand, its loop against the lecture's results."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator, Tensor, nn

from gsmrl_helpers.losses import kl_estimate
from gsmrl_helpers.sorting import (
    PROMPTS,
    SortingPolicy,
    compute_deltas,
    compute_kl_penalty,
    compute_log_probs,
    compute_loss,
    compute_reward,
    expected_reward,
    generate_responses,
    run_policy_gradient,
    sort_distance_reward,
    sort_inclusion_ordering_reward,
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors this small are slower with two threads, on a busy machine by far."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def seeded(*seeds: int) -> list[Generator]:
    return [Generator().manual_seed(seed) for seed in seeds]


@pytest.mark.parametrize(
    ("response", "distance", "inclusion_ordering"),
    [([0, 1, 2, 3], 4, 7), ([7, 2, 2, 5], 1, 3), ([0, 3, 1, 2], 1, 6), ([3, 2, 1, 0], 0, 4)],
)
def test_rewards_of_the_lecture(response, distance, inclusion_ordering):
    assert sort_distance_reward([3, 1, 0, 2], response) == distance
    assert sort_inclusion_ordering_reward([3, 1, 0, 2], response) == inclusion_ordering


def test_a_response_of_another_length_has_no_distance():
    with pytest.raises(ValueError, match="longer"):
        sort_distance_reward([1, 0], [0, 1, 2])


def test_the_weights_are_those_that_the_lecture_draws():
    policy = SortingPolicy(seeded(5))
    torch.manual_seed(5)
    embedding = nn.Embedding(5, 10).weight
    encode, decode = (torch.randn(3, 10, 10) / math.sqrt(10) for _ in range(2))
    for ours, theirs in zip(policy.parameters(), (embedding, encode, decode), strict=True):
        torch.testing.assert_close(ours[0].float(), theirs.detach(), rtol=1e-6, atol=1e-7)


def test_logits_are_the_products_that_the_shapes_say():
    policy = SortingPolicy(seeded(0, 1))
    logits = policy(PROMPTS)
    assert logits.shape == (2, 3, 3, 5) and logits.dtype == torch.float64
    embedding, encode, decode = (p[1] for p in policy.parameters())
    whole = sum(embedding[token] @ encode[pos] for pos, token in enumerate(PROMPTS[2].tolist()))
    for pos in range(3):
        torch.testing.assert_close(logits[1, 2, pos], embedding @ (whole @ decode[pos]))


def test_runs_share_nothing():
    alone = run_policy_gradient([5], num_epochs=3, deltas_mode="centered_rewards")
    together = run_policy_gradient([4, 5], num_epochs=3, deltas_mode="centered_rewards")
    assert (together.responses[:, 1] == alone.responses[:, 0]).all()
    torch.testing.assert_close(together.probs[:, 1], alone.probs[:, 0])
    assert not torch.equal(together.responses[:, 0], alone.responses[:, 0])


def test_responses_are_drawn_from_the_policy():
    logits = torch.tensor([[[[0.0, math.log(3)], [50.0, 0.0]]]]).double()
    responses = generate_responses(logits, 4000, seeded(0))
    assert responses.shape == (1, 1, 4000, 2)
    standard_error = math.sqrt(0.75 * 0.25 / 4000)
    assert abs(responses[..., 0].double().mean() - 0.75) < 4 * standard_error
    assert (responses[..., 1] == 0).all()


def test_rewards_keep_their_places():
    responses = torch.arange(5).repeat(2, 3, 4, 3)[..., :3]
    responses[1, 2, 3] = torch.tensor([1, 2, 3])
    rewards = compute_reward(PROMPTS, responses, sort_inclusion_ordering_reward)
    assert rewards.shape == (2, 3, 4) and rewards.dtype == torch.float64
    assert rewards[0, :, 0].tolist() == [5, 3, 4]  # [0, 1, 2] for each prompt
    assert rewards[1, 2].tolist() == [4, 4, 4, 5]


def test_deltas_by_hand():
    rewards = torch.tensor([[4.0, 4, 3, 4, 4], [2, 2, 2, 2, 2]]).double()
    expected = {
        "rewards": [4, 4, 3, 4, 4],
        "centered_rewards": [0.2, 0.2, -0.8, 0.2, 0.2],
        "normalized_rewards": [0.4472, 0.4472, -1.7888, 0.4472, 0.4472],
        "max_rewards": [4, 4, 0, 4, 4],
    }
    for mode, deltas in expected.items():
        found = compute_deltas(rewards, mode)
        assert found[0].tolist() == pytest.approx(deltas, abs=1e-4)
        wanted = 2 if mode in ("rewards", "max_rewards") else 0
        assert (found[1] == wanted).all()


def test_log_probs_are_those_of_the_tokens():
    logits = torch.tensor([[[[0.2, 0.8], [0.5, 0.5]]]]).double().log()
    log_probs = compute_log_probs(logits, torch.tensor([[[[0, 1], [1, 0], [1, 1]]]]))
    expected = torch.tensor([[[[0.2, 0.5], [0.8, 0.5], [0.8, 0.5]]]]).double()
    torch.testing.assert_close(log_probs.exp(), expected)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("naive", -(2 * math.log(0.5) + 2 * math.log(0.2) - math.log(0.4) - math.log(0.8)) / 4),
        ("unclipped", -(2 * 2 + 2 * 0.5 - 1 - 4) / 4),
        ("clipped", -(2 * 1.1 + 2 * 0.5 - 1 - 4) / 4),
    ],
)
def test_losses_by_hand(mode: str, expected: float):
    log_probs = torch.tensor([[[0.5, 0.2], [0.4, 0.8]]]).double().log()
    old_log_probs = torch.tensor([[[0.25, 0.4], [0.4, 0.2]]]).double().log()
    deltas = torch.tensor([[2.0, -1.0]]).double()
    loss = compute_loss(log_probs, deltas, mode, old_log_probs, epsilon=0.1)
    assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_refusals_say_what_is_wrong():
    log_probs, deltas = torch.zeros(1, 2, 3), torch.zeros(1, 2)
    with pytest.raises(ValueError, match="'clipped' needs old_log_probs"):
        compute_loss(log_probs, deltas, "clipped")
    with pytest.raises(ValueError, match="mode='ppo' is unknown"):
        compute_loss(log_probs, deltas, "ppo")
    with pytest.raises(ValueError, match="mode='max' is unknown"):
        compute_deltas(deltas, "max")
    with pytest.raises(ValueError, match="temperature=0"):
        run_policy_gradient([0], temperature=0)
    with pytest.raises(ValueError, match="num_epochs=0"):
        run_policy_gradient([0], num_epochs=0)


def test_the_kl_penalty_is_the_k3_estimate_summed_over_positions():
    generator = Generator().manual_seed(0)
    log_probs, ref_log_probs = torch.rand(2, 2, 3, 4, 5, generator=generator).double().log()
    expected = kl_estimate(log_probs, ref_log_probs).sum(dim=-1).mean(dim=(-1, -2))
    torch.testing.assert_close(compute_kl_penalty(log_probs, ref_log_probs), expected)


def test_expected_reward_is_exact():
    certain = torch.zeros(1, 3, 3, 5, dtype=torch.float64)
    certain[0, torch.arange(3)[:, None], torch.arange(3), PROMPTS.sort(dim=1).values] = 1
    assert expected_reward(PROMPTS, certain, sort_inclusion_ordering_reward).tolist() == [[5] * 3]
    uniform = torch.full((3, 3, 5), 0.2, dtype=torch.float64)
    found = expected_reward(PROMPTS, uniform, sort_distance_reward)
    torch.testing.assert_close(found, torch.full((3,), 3 / 5, dtype=torch.float64))


@pytest.fixture(scope="module")
def lecture() -> dict[str, Tensor]:
    """Rewards (epoch,) of the three experiments, and the last answers of each."""
    modes = ("rewards", "centered_rewards", "normalized_rewards")
    return {mode: run_policy_gradient([5], deltas_mode=mode) for mode in modes}


def test_the_three_experiments_end_as_in_the_lecture(lecture):
    expected = {"rewards": 2.67, "centered_rewards": 3.33, "normalized_rewards": 3.33}
    for mode, end in expected.items():
        mean_rewards = lecture[mode].rewards[:, 0].mean(dim=(1, 2))
        assert mean_rewards[0].item() == pytest.approx(2.33, abs=0.005)
        assert mean_rewards[-1].item() == pytest.approx(end, abs=0.005)


def test_after_centred_training_all_answers_to_a_prompt_are_the_same(lecture):
    responses = lecture["centered_rewards"].responses[-1, 0]
    assert (responses == responses[:, :1]).all()
    assert responses[:, 0].tolist() == [[2, 0, 1], [0, 0, 1], [2, 3, 1]]


def test_each_cure_changes_the_run_and_nothing_that_comes_before_it():
    def run(**settings) -> Tensor:
        return run_policy_gradient([0], num_epochs=12, **settings).probs[:, 0]

    plain, clipped = run(), run(loss_mode="clipped")
    for cured in (run(entropy_bonus=1.0), run(num_responses=32), run(temperature=5.0)):
        assert torch.equal(cured[0], plain[0])
        assert (cured[-1] - plain[-1]).abs().max() > 1e-3
    penalized = run(loss_mode="clipped", kl_penalty=1.0)
    assert (penalized[-1] - clipped[-1]).abs().max() > 1e-3
    stiff = run(loss_mode="clipped", kl_penalty=100.0, compute_ref_model_period=12)
    assert (stiff[-1] - stiff[0]).abs().max() < (clipped[-1] - clipped[0]).abs().max()
