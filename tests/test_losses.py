"""Per-token losses, their gradients, their aggregation, and the KL estimates."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gsmrl_helpers.losses import (
    aggregate_loss_across_microbatch,
    compute_policy_gradient_loss,
    kl_estimate,
)

RATIO_METHODS = ["noclip", "grpo", "gspo", "cispo"]
INF = math.inf


def loss_and_gradient(
    advantages: list[float], ratios: list[list[float]], method: str, **options: object
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Per-token loss, d(sum of the loss)/d(log π), metadata, where π_θ/π_old are `ratios`."""
    old = torch.full((len(ratios), len(ratios[0])), -1.5, dtype=torch.float64)
    new = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    loss, metadata = compute_policy_gradient_loss(
        torch.tensor(advantages), new, method, old_log_probs=old, **options
    )
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    return loss.detach(), gradient, metadata


def close(actual: Tensor, expected: object) -> None:
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype), atol=1e-9, rtol=1e-9
    )


def test_reinforce_is_minus_advantage_times_log_prob() -> None:
    log_probs = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], requires_grad=True)
    loss, metadata = compute_policy_gradient_loss(torch.tensor([2.0, -1.0]), log_probs)
    close(loss.detach(), [[2.0, 4.0], [-3.0, -4.0]])
    loss.sum().backward()
    close(log_probs.grad, [[-2.0, -2.0], [1.0, 1.0]])
    assert metadata == {}


def test_noclip_weighs_by_the_token_ratio() -> None:
    loss, gradient, metadata = loss_and_gradient([2.0, -1.0], [[0.5, 3.0], [1.0, 1.5]], "noclip")
    close(loss, [[-1.0, -6.0], [1.0, 1.5]])
    close(gradient, [[-1.0, -6.0], [1.0, 1.5]])  # d(-A r)/d(log π) = -A r
    close(metadata["ratio"], [[0.5, 3.0], [1.0, 1.5]])
    assert not metadata["is_clipped"].any()


def test_grpo_clips_the_side_that_would_gain() -> None:
    # Four cases of sign and side: only "better and already likelier" and "worse and already less
    # likely" lose their gradient; the others may still be corrected, at full weight.
    loss, gradient, metadata = loss_and_gradient(
        [1.0, -1.0], [[1.5, 0.5, 1.1], [1.5, 0.5, 1.1]], "grpo", cliprange=0.2
    )
    close(loss, [[-1.2, -0.5, -1.1], [1.5, 0.8, 1.1]])
    close(gradient, [[0.0, -0.5, -1.1], [1.5, 0.0, 1.1]])
    assert metadata["is_clipped"].tolist() == [[True, False, False], [False, True, False]]


def test_cispo_caps_the_weight_and_keeps_the_gradient() -> None:
    loss, gradient, metadata = loss_and_gradient(
        [1.0, -2.0], [[1.5, 0.5], [1.5, 0.5]], "cispo", cliprange=0.2
    )
    close(gradient, [[-1.2, -0.5], [2.4, 1.0]])
    first, second = math.log(1.5) - 1.5, math.log(0.5) - 1.5  # log π of the two tokens
    close(loss, [[-1.2 * first, -0.5 * second], [2.4 * first, 1.0 * second]])
    assert metadata["is_clipped"].tolist() == [[True, False], [True, False]]


def test_gspo_weighs_by_the_geometric_mean_over_response_tokens() -> None:
    mask = torch.tensor([[True, True, False], [True, True, True]])
    loss, gradient, metadata = loss_and_gradient(
        [1.0, -1.0], [[4.0, 1.0, 9.0], [0.5, 2.0, 8.0]], "gspo", cliprange=10.0, response_mask=mask
    )
    close(loss, [[-2.0] * 3, [2.0] * 3])  # sqrt(4 · 1) and cbrt(.5 · 2 · 8)
    close(gradient, [[-2.0, -2.0, 0.0], [2.0, 2.0, 2.0]])
    close(metadata["ratio"], [[4.0, 1.0, 1.0], [0.5, 2.0, 8.0]])


def test_gspo_clips_whole_responses() -> None:
    mask = torch.tensor([[True, True, False]] * 3)
    loss, gradient, metadata = loss_and_gradient(
        [1.0, -1.0, 1.0],
        [[2.0, 2.0, 1.0], [2.0, 2.0, 1.0], [0.5, 0.5, 1.0]],
        "gspo",
        cliprange=0.5,
        response_mask=mask,
    )
    close(loss[:, 0], [-1.5, 2.0, -0.5])
    close(gradient[:, 0], [0.0, 2.0, -0.5])
    assert metadata["is_clipped"].tolist() == [[True, True, False], [False] * 3, [False] * 3]


def test_gspo_under_sequence_aggregation_is_the_gradient_of_the_sequence_weight() -> None:
    old = torch.randn(2, 4, dtype=torch.float64)
    new = (old + 0.1 * torch.randn(2, 4, dtype=torch.float64)).requires_grad_()
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    advantages = torch.tensor([1.5, -0.5], dtype=torch.float64)
    loss, _ = compute_policy_gradient_loss(advantages, new, "gspo", old, 10.0, mask)
    loss = aggregate_loss_across_microbatch(loss, mask)
    sequence_weight = (((new - old) * mask).sum(1) / mask.sum(1)).exp()
    expected = -(advantages * sequence_weight).mean()
    close(loss.detach(), expected.detach())
    gradients = [torch.autograd.grad(value, new)[0] for value in (loss, expected)]
    close(*gradients)


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_on_policy_every_method_has_the_gradient_of_reinforce(method: str) -> None:
    _, gradient, metadata = loss_and_gradient(
        [2.0, -1.0],
        [[1.0, 1.0], [1.0, 1.0]],
        method,
        cliprange=0.0,
        response_mask=torch.ones(2, 2),
    )
    close(gradient, [[-2.0, -2.0], [1.0, 1.0]])
    assert not metadata["is_clipped"].any()


def test_reinforce_off_policy_reports_the_ratio_it_does_not_use() -> None:
    loss, _, metadata = loss_and_gradient([1.0], [[2.0, 0.5]], "none")
    close(loss, [[1.5 - math.log(2), 1.5 + math.log(2)]])
    close(metadata["ratio"], [[2.0, 0.5]])


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_advantages_and_old_log_probs_are_constants(method: str) -> None:
    old = torch.randn(2, 3, requires_grad=True)
    new = torch.randn(2, 3, requires_grad=True)
    advantages = torch.randn(2, requires_grad=True)
    mask = torch.ones(2, 3)
    loss, metadata = compute_policy_gradient_loss(advantages, new, method, old, 0.2, mask)
    loss.sum().backward()
    assert new.grad is not None and old.grad is None and advantages.grad is None
    assert not metadata["ratio"].requires_grad


@pytest.mark.parametrize(
    "method, tell_the_loss",
    [(method, True) for method in ["none", *RATIO_METHODS]]
    + [(method, False) for method in ["none", "noclip", "grpo", "cispo"]],  # gspo needs the mask
)
@pytest.mark.parametrize("masked", [(-1000.0, -1.0), (-1.0, -1000.0), (-INF, -1.0), (-1.0, -INF)])
def test_a_masked_position_can_hold_anything(
    method: str, masked: tuple[float, float], tell_the_loss: bool
) -> None:
    mask = torch.tensor([[True, False]] * 3)
    new = torch.tensor([[-1.0, masked[0]]] * 3, requires_grad=True)
    old = torch.tensor([[-1.1, masked[1]]] * 3)
    loss, metadata = compute_policy_gradient_loss(
        torch.tensor([1.0, -1.0, 0.0]), new, method, old, 0.2, mask if tell_the_loss else None
    )
    loss = aggregate_loss_across_microbatch(loss, mask)
    loss.backward()
    assert loss.isfinite()
    assert new.grad.isfinite().all()
    assert (new.grad[:, 1] == 0).all()
    assert (new.grad[:2, 0] != 0).all()
    assert metadata["ratio"][mask].isfinite().all()


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_both_infinite_at_a_masked_position(method: str) -> None:
    mask = torch.tensor([[True, False]])
    new = torch.tensor([[-1.0, -INF]], requires_grad=True)
    old = torch.tensor([[-1.0, -INF]])
    loss, _ = compute_policy_gradient_loss(torch.tensor([1.0]), new, method, old, 0.2, mask)
    aggregate_loss_across_microbatch(loss, mask).backward()
    close(new.grad, [[-1.0, 0.0]])


def test_a_broken_response_token_is_not_hidden() -> None:
    new = torch.tensor([[math.nan, -1.0]])
    loss, _ = compute_policy_gradient_loss(torch.tensor([1.0]), new, "noclip", torch.zeros(1, 2))
    assert loss[0, 0].isnan()


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_advantages_run_along_rows_even_when_b_equals_t(shape: tuple[int, ...]) -> None:
    advantages = torch.tensor([1.0, 2.0, 3.0]).reshape(shape)
    loss, _ = compute_policy_gradient_loss(advantages, -torch.ones(3, 3))
    assert loss.tolist() == [[1.0] * 3, [2.0] * 3, [3.0] * 3]


@pytest.mark.parametrize("shape", [(1, 3), (3, 3), (2,), (1,), ()])
def test_other_shapes_of_advantages_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must have shape \(3,\) or \(3, 1\)"):
        compute_policy_gradient_loss(torch.ones(shape), -torch.ones(3, 3))


@pytest.mark.parametrize(
    "method, options, message",
    [
        (
            "ppo",
            {},
            "importance_reweighting_method='ppo' is unknown: allowed are 'none', 'noclip', "
            "'grpo', 'gspo', 'cispo'",
        ),
        ("noclip", {"old_log_probs": None}, "'noclip' needs old_log_probs, got None"),
        ("grpo", {"old_log_probs": None}, "'grpo' needs old_log_probs, got None"),
        ("grpo", {"cliprange": None}, "'grpo' needs a cliprange of at least 0, got None"),
        ("gspo", {"cliprange": None}, "'gspo' needs a cliprange of at least 0, got None"),
        ("cispo", {"cliprange": None}, "'cispo' needs a cliprange of at least 0, got None"),
        ("grpo", {"cliprange": -0.1}, "cliprange=-0.1 must be a number at least 0"),
        ("grpo", {"cliprange": math.nan}, "cliprange=nan must be a number at least 0"),
        ("grpo", {"cliprange": "0.2"}, "cliprange='0.2' must be a number at least 0"),
        ("gspo", {"response_mask": None}, "'gspo' needs response_mask, got None"),
        ("grpo", {"old_log_probs": -torch.ones(2, 4)}, "old_log_probs must have the shape"),
        ("grpo", {"old_log_probs": -torch.ones(2, 2)}, "old_log_probs must have the shape"),
        ("gspo", {"response_mask": torch.ones(3, 2)}, "response_mask must have the shape"),
    ],
)
def test_bad_arguments_are_named(method: str, options: dict, message: str) -> None:
    arguments = {
        "old_log_probs": -torch.ones(2, 3),
        "cliprange": 0.2,
        "response_mask": torch.ones(2, 3),
    }
    with pytest.raises(ValueError, match=message):
        compute_policy_gradient_loss(
            torch.ones(2), -torch.ones(2, 3), method, **{**arguments, **options}
        )


LOSSES = torch.tensor([[1.0, 3.0, 99.0, 99.0], [10.0, 20.0, 30.0, 40.0], [99.0] * 4])
MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
@pytest.mark.parametrize(
    "normalization, constant, expected",
    [
        ("sequence", None, (2.0 + 25.0 + 0.0) / 3),
        ("constant", 8.0, 104.0 / 8),
        ("token", 6, 104.0 / 6),
    ],
)
def test_aggregation(
    normalization: str, constant: float | None, expected: float, dtype: torch.dtype
) -> None:
    loss = aggregate_loss_across_microbatch(LOSSES, MASK.to(dtype), normalization, constant)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(expected)


def test_a_token_of_a_long_response_weighs_less_under_sequence_normalization() -> None:
    losses = torch.zeros(2, 16, requires_grad=True)
    mask = torch.tensor([[True] * 16, [True] * 2 + [False] * 14])
    aggregate_loss_across_microbatch(losses, mask).backward()
    weights = losses.grad * 2  # of the mean over two responses
    assert weights[0, 0] == 1 / 16 and weights[1, 0] == 1 / 2
    assert (losses.grad[~mask] == 0).all()


@pytest.mark.parametrize("normalization", ["sequence", "constant", "token"])
@pytest.mark.parametrize("value", [math.nan, INF, -INF])
def test_masked_losses_do_not_count(normalization: str, value: float) -> None:
    losses = torch.where(MASK.bool(), LOSSES, value).requires_grad_()
    loss = aggregate_loss_across_microbatch(losses, MASK, normalization, 6)
    loss.backward()
    assert loss == aggregate_loss_across_microbatch(LOSSES, MASK, normalization, 6)
    assert losses.grad.isfinite().all()


@pytest.mark.parametrize(
    "normalization, constant, message",
    [
        ("mean", 1, "='mean' is unknown: allowed are 'sequence', 'constant', 'token'"),
        ("constant", None, "'constant' needs normalization_constant, got None"),
        ("token", None, "'token' needs normalization_constant, got None"),
        ("constant", 0, "normalization_constant=0 must be a number greater than 0"),
        ("token", -1.0, "normalization_constant=-1.0 must be a number greater than 0"),
    ],
)
def test_bad_normalizations_are_named(
    normalization: str, constant: float | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        aggregate_loss_across_microbatch(LOSSES, MASK, normalization, constant)


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="mask must have the shape"):
        aggregate_loss_across_microbatch(LOSSES, MASK[:1])


@pytest.mark.parametrize("kind, expected", [("k1", 0.6931), ("k2", 0.2402), ("k3", 0.1931)])
def test_kl_estimates_of_one_half_against_one_quarter(kind: str, expected: float) -> None:
    estimate = kl_estimate(torch.tensor(0.5).log(), torch.tensor(0.25).log(), kind)
    assert estimate.item() == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("kind, gradient", [("k1", 1.0), ("k2", math.log(2)), ("k3", 0.5)])
def test_their_gradients_differ(kind: str, gradient: float) -> None:
    log_probs = torch.tensor(0.5, dtype=torch.float64).log().requires_grad_()
    kl_estimate(log_probs, torch.tensor(0.25, dtype=torch.float64).log(), kind).backward()
    assert log_probs.grad.item() == pytest.approx(gradient)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(kind: str) -> None:
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reference = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    exact = (policy * (policy / reference).log()).sum()
    expectation = (policy * kl_estimate(policy.log(), reference.log(), kind)).sum()
    close(expectation, exact)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_equal_inputs_give_exactly_zero(kind: str, dtype: torch.dtype) -> None:
    log_probs = torch.tensor([-1e-8, -0.3, -17.123, -1000.0, -INF], dtype=dtype)
    estimate = kl_estimate(log_probs, log_probs.clone(), kind)
    assert (estimate == 0).all()


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("difference", [-100.0, 100.0])
def test_value_and_gradient_stay_finite_far_apart(
    kind: str, dtype: torch.dtype, difference: float
) -> None:
    reference = torch.tensor([-150.0], dtype=dtype)
    log_probs = (reference + difference).requires_grad_()
    estimate = kl_estimate(log_probs, reference, kind)
    estimate.sum().backward()
    assert estimate.isfinite().all() and log_probs.grad.isfinite().all()
    if kind != "k1":  # k2 and k3 pull towards the reference from either side
        assert log_probs.grad.sign().item() == math.copysign(1, difference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k3_is_never_negative(dtype: torch.dtype) -> None:
    sizes = torch.logspace(-30, 2, 2000, dtype=dtype)
    differences = torch.cat([-sizes, sizes])
    estimate = kl_estimate(differences, torch.zeros_like(differences), "k3")
    assert (estimate >= 0).all()


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 3e-5), (torch.float64, 1e-10)])
def test_k3_is_exact_for_small_differences_too(dtype: torch.dtype, tolerance: float) -> None:
    differences = torch.logspace(-6, 1, 200, dtype=dtype)
    differences = torch.cat([-differences, differences])
    estimate = kl_estimate(torch.zeros_like(differences), differences, "k3")
    for x, value in zip(differences.tolist(), estimate.tolist(), strict=True):
        terms = [x]  # e^x - 1 - x as its series, in Python floats
        while abs(terms[-1]) > 1e-30 * abs(terms[0]):
            terms.append(terms[-1] * x / (len(terms) + 1))
        assert value == pytest.approx(math.fsum(terms[1:]), rel=tolerance)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_the_kl_gradient_is_the_derivative(kind: str) -> None:
    log_probs = torch.linspace(-3, -0.1, 30, dtype=torch.float64, requires_grad=True)
    reference = torch.full_like(log_probs, -1.0).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda new: kl_estimate(new, reference.detach(), kind), (log_probs,)
    )
    kl_estimate(log_probs, reference, kind).sum().backward()
    assert reference.grad is None


def test_an_unknown_kl_estimator_is_refused() -> None:
    with pytest.raises(ValueError, match="kind='k4' is unknown: allowed are 'k1', 'k2', 'k3'"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")
    with pytest.raises(ValueError, match="ref_log_probs must have the shape"):
        kl_estimate(torch.zeros(2), torch.zeros(1))
