"""Chunked log-probabilities: the plain function's values and gradients, and much less memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gsmrl_helpers.chunked_log_probs import chunked_label_log_probs
from gsmrl_helpers.log_probs import get_response_log_probs, label_log_probs
from gsmrl_helpers.memory import LiveBytes
from tests.tiny_policy import make_policy

B, T, D, V = 3, 5, 4, 11


def make_inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, nn.Linear, Tensor]:
    """Hidden states (B, T, D), a head D -> V, labels (B, T)."""
    torch.manual_seed(0)
    head = nn.Linear(D, V, bias=False, dtype=dtype)
    hidden_states = torch.randn(B, T, D, dtype=dtype, requires_grad=True)
    return hidden_states, head, torch.randint(V, (B, T))


@pytest.mark.parametrize("chunk_size", [1, 2, 4, 5, 14, 15, 16, 1000])
@pytest.mark.parametrize("return_token_entropy", [False, True])
def test_values_and_gradients_are_those_of_the_plain_function(
    chunk_size: int, return_token_entropy: bool
) -> None:
    hidden_states, head, labels = make_inputs()
    plain = label_log_probs(head(hidden_states), labels, return_token_entropy)
    chunked = chunked_label_log_probs(hidden_states, head, labels, chunk_size, return_token_entropy)
    assert chunked.keys() == plain.keys()
    weights = torch.linspace(-1, 2, B * T, dtype=torch.float64).view(B, T)
    gradients = []
    for scored in (plain, chunked):
        loss = sum((weights * values).sum() for values in scored.values())
        gradients.append(torch.autograd.grad(loss, (hidden_states, head.weight)))
    for name, values in plain.items():
        torch.testing.assert_close(chunked[name], values, atol=1e-12, rtol=0)
    for found, expected in zip(*gradients, strict=True):
        assert expected.abs().max() > 0.1
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_the_gradient_is_the_derivative() -> None:
    hidden_states, head, labels = make_inputs()

    def score(hidden: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        scored = chunked_label_log_probs(hidden, lambda h: h @ weight.T, labels, 4, True)
        return tuple(scored.values())

    assert torch.autograd.gradcheck(score, (hidden_states, head.weight))


def test_a_real_model_scored_through_its_head() -> None:
    model = make_policy()
    input_ids = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 2]])
    labels = torch.tensor([[4, 5, 6, 1], [8, 9, 1, 2]])
    plain = get_response_log_probs(model, input_ids, labels, return_token_entropy=True)
    hidden_states = model.model(input_ids).last_hidden_state
    chunked = chunked_label_log_probs(hidden_states, model.lm_head, labels, 3, True)
    for name, values in plain.items():
        torch.testing.assert_close(chunked[name], values, atol=1e-6, rtol=0)


def test_bfloat16_logits_are_scored_in_float32() -> None:
    hidden_states, head, labels = make_inputs(torch.bfloat16)
    scored = chunked_label_log_probs(hidden_states, head, labels, 4, True)
    assert {values.dtype for values in scored.values()} == {torch.float32}
    scored["log_probs"].sum().backward()
    assert head.weight.grad.dtype == torch.bfloat16


def test_no_position_at_all() -> None:
    _, head, _ = make_inputs()
    hidden_states, labels = torch.zeros(0, D, dtype=torch.float64), torch.zeros(0).long()
    assert chunked_label_log_probs(hidden_states, head, labels, 4)["log_probs"].shape == (0,)


def test_no_grad_builds_no_graph() -> None:
    hidden_states, head, labels = make_inputs()
    with torch.no_grad():
        scored = chunked_label_log_probs(hidden_states, head, labels, 4)
    assert not scored["log_probs"].requires_grad


@pytest.mark.parametrize("chunk_size", [0, -1, 2.0, True, None])
def test_a_chunk_size_that_is_no_positive_integer_is_refused(chunk_size: object) -> None:
    with pytest.raises(ValueError, match=r"chunk_size=.* must be an integer of at least 1"):
        chunked_label_log_probs(*make_inputs(), chunk_size)


def test_shapes_that_do_not_fit_are_refused() -> None:
    hidden_states, head, labels = make_inputs()
    with pytest.raises(ValueError, match=r"\(3, 5, 4\) of hidden_states must be \(3, 4\) and D"):
        chunked_label_log_probs(hidden_states, head, labels[:, :4], 4)


@pytest.mark.parametrize("with_backward", [False, True])
def test_memory_grows_with_the_chunk_and_not_with_the_batch(with_backward: bool) -> None:
    n_positions, vocabulary, chunk_size = 64, 5000, 4
    head = nn.Linear(2, vocabulary, bias=False)
    hidden_states = torch.randn(n_positions, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(n_positions)

    def peak(n: int, size: int) -> int:
        with torch.set_grad_enabled(with_backward), LiveBytes() as memory:
            scored = chunked_label_log_probs(hidden_states[:n], head, labels[:n], size)
            if with_backward:
                scored["log_probs"].sum().backward()
        head.weight.grad = None
        return memory.peak

    one_position = 4 * vocabulary
    whole, chunked, chunked_half = peak(64, 64), peak(64, 4), peak(32, 4)
    assert whole >= 2 * n_positions * one_position
    assert chunked == pytest.approx(chunked_half, rel=0.02)
    # beside the chunk's logits: at most three tensors of the head's gradient's size
    assert chunked <= 3 * chunk_size * one_position + 3 * 2 * one_position + 10_000
