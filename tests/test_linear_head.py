"""The head's log-probabilities and entropies with the gradient written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gsmrl_helpers.linear_head import linear_head_log_probs
from gsmrl_helpers.log_probs import label_log_probs

N, D, V = 7, 5, 11


def make_inputs(dtype: torch.dtype = torch.float64, scale: float = 1.0):
    generator = torch.Generator().manual_seed(0)
    hidden = (scale * torch.randn(N, D, generator=generator)).to(dtype).requires_grad_()
    weight = torch.randn(V, D, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(V, (N,), generator=generator)


def gradients(scored: dict[str, Tensor], inputs: list[Tensor], *names: str) -> list[Tensor]:
    weights = torch.linspace(-1, 2, N, dtype=torch.float64)
    loss = sum((weights.to(scored[name].dtype) * scored[name]).sum() for name in names)
    return list(torch.autograd.grad(loss, inputs))


@pytest.mark.parametrize(
    "names", [["log_probs"], ["token_entropy"], ["log_probs", "token_entropy"]]
)
@pytest.mark.parametrize("chunk_size", [1, 3, 7, 100])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_values_and_gradients_are_those_of_the_logits(
    names: list[str], chunk_size: int, scale: float
) -> None:
    hidden, weight, labels = make_inputs(scale=scale)
    plain = label_log_probs(hidden @ weight.T, labels, True)
    ours = linear_head_log_probs(hidden, weight, labels, chunk_size)
    torch.testing.assert_close(ours, plain, atol=1e-10, rtol=1e-10)
    wanted = gradients(plain, [hidden, weight], *names)
    torch.testing.assert_close(
        gradients(ours, [hidden, weight], *names), wanted, atol=1e-10, rtol=1e-10
    )


def test_the_gradient_is_the_slope() -> None:
    hidden, weight, labels = make_inputs()
    assert torch.autograd.gradcheck(
        lambda h, w: tuple(linear_head_log_probs(h, w, labels, 3).values()), (hidden, weight)
    )


def test_half_precision_is_scored_in_float32_and_summed_there() -> None:
    hidden, weight, labels = make_inputs(torch.bfloat16)
    ours = linear_head_log_probs(hidden, weight, labels, 1)
    assert {scores.dtype for scores in ours.values()} == {torch.float32}
    found = gradients(ours, [hidden, weight], "log_probs")
    assert {gradient.dtype for gradient in found} == {torch.bfloat16}
    plain = gradients(label_log_probs(hidden @ weight.T, labels), [hidden, weight], "log_probs")
    torch.testing.assert_close(found, plain, atol=0.03, rtol=0.02)  # bf16 has 8 bits


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_what_is_frozen_gets_no_gradient(frozen: str) -> None:
    hidden, weight, labels = make_inputs()
    plain = gradients(label_log_probs(hidden @ weight.T, labels), [hidden, weight], "log_probs")
    (hidden if frozen == "hidden" else weight).requires_grad_(False)
    trained = weight if frozen == "hidden" else hidden
    ours = linear_head_log_probs(hidden, weight, labels, 3)
    (found,) = gradients(ours, [trained], "log_probs")
    torch.testing.assert_close(found, plain[1 if frozen == "hidden" else 0])


def test_no_positions_and_a_bad_chunk() -> None:
    hidden, weight, labels = make_inputs()
    assert linear_head_log_probs(hidden[:0], weight, labels[:0], 3)["log_probs"].shape == (0,)
    with pytest.raises(ValueError, match="chunk_size"):
        linear_head_log_probs(hidden, weight, labels, 0)


def test_shapes_and_dtypes_that_do_not_fit_are_refused() -> None:
    hidden, weight, labels = torch.randn(3, 4), torch.randn(7, 4), torch.zeros(3).long()
    for wrong in (
        (hidden, weight.T, labels),
        (hidden, weight, labels[:2]),
        (hidden[0], weight, labels),
        (hidden, weight.double(), labels),
    ):
        with pytest.raises(ValueError, match=r"must be \(N, D\), \(V, D\) of the same dtype"):
            linear_head_log_probs(*wrong, 2)
