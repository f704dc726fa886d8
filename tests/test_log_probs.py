"""Log-probabilities of labels, and the entropy of next-token distributions."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from gsmrl_helpers.log_probs import (
    entropy,
    entropy_from_log_probs,
    get_response_log_probs,
    label_log_probs,
    log_softmax,
)
from gsmrl_helpers.tokenization import tokenize_prompt_and_output
from tests.tiny_policy import make_policy, make_tokenizer


class FixedLogits(torch.nn.Module):
    """A "model" whose logits are given."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits)


def test_the_probabilities_of_the_labels() -> None:
    # Three tokens of probability 1/2, 1/4 and 8/10: the answer has probability 1/10.
    probabilities = torch.tensor([[[0.5, 0.3, 0.2], [0.25, 0.5, 0.25], [0.1, 0.1, 0.8]]])
    labels = torch.tensor([[0, 2, 2]])
    result = get_response_log_probs(FixedLogits(probabilities.log()), labels, labels)
    assert set(result) == {"log_probs"}
    torch.testing.assert_close(result["log_probs"].exp(), torch.tensor([[0.5, 0.25, 0.8]]))
    assert result["log_probs"].sum().exp().item() == pytest.approx(0.1)


def test_every_position_agrees_with_the_model_run_on_its_own_prefix() -> None:
    model = make_policy()
    batch = tokenize_prompt_and_output(["2+2=", "c"], ["4", "ab1"], make_tokenizer())
    with torch.no_grad():
        log_probs = get_response_log_probs(model, batch["input_ids"], batch["labels"])["log_probs"]
        for row, position in batch["response_mask"].nonzero().tolist():
            prefix = batch["input_ids"][row : row + 1, : position + 1]
            distribution = model(prefix).logits[0, -1].softmax(-1)
            expected = distribution[batch["labels"][row, position]].log()
            assert log_probs[row, position] == pytest.approx(expected.item(), abs=1e-5)


def test_padding_does_not_reach_a_response_token() -> None:
    model = make_policy()
    batch = tokenize_prompt_and_output(["c", "c"], ["12", "1234567"], make_tokenizer())
    alone = tokenize_prompt_and_output(["c"], ["12"], make_tokenizer())
    with torch.no_grad():
        padded = get_response_log_probs(model, batch["input_ids"], batch["labels"])["log_probs"]
        exact = get_response_log_probs(model, alone["input_ids"], alone["labels"])["log_probs"]
    torch.testing.assert_close(padded[:1, :2], exact, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "given, returned",
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_results_are_of_float32_at_least(given: torch.dtype, returned: torch.dtype) -> None:
    logits = torch.tensor([[[1.0, 2.0, 3.0]]], dtype=given)
    labels = torch.tensor([[1]])
    result = get_response_log_probs(FixedLogits(logits), labels, labels, True)
    assert result["log_probs"].dtype == result["token_entropy"].dtype == returned
    exact = math.exp(2) / (math.exp(1) + math.exp(2) + math.exp(3))
    assert result["log_probs"].item() == pytest.approx(math.log(exact), abs=1e-6)


@pytest.mark.parametrize(
    "probabilities, expected",
    [([0.5, 0.5], 0.6931), ([0.9, 0.1], 0.3251), ([1.0, 0.0], 0.0), ([0.25] * 4, math.log(4))],
)
def test_entropy_in_nats(probabilities: list[float], expected: float) -> None:
    assert entropy(torch.tensor(probabilities).log()).item() == pytest.approx(expected, abs=5e-5)


def test_entropy_lies_between_zero_and_the_log_of_the_vocabulary() -> None:
    logits = torch.randn(1000, 7, generator=torch.Generator().manual_seed(0)) * 5
    values = entropy(logits)
    assert values.shape == (1000,)
    assert values.min() >= 0 and values.max() <= math.log(7) + 1e-6


def test_forbidden_tokens_leave_entropy_and_gradients_finite() -> None:
    logits = torch.tensor([[[0.0, -math.inf, 0.0]]])
    model = FixedLogits(logits)
    labels = torch.tensor([[2]])
    result = get_response_log_probs(model, labels, labels, return_token_entropy=True)
    assert result["token_entropy"].item() == pytest.approx(math.log(2))
    (result["token_entropy"] + result["log_probs"]).sum().backward()
    torch.testing.assert_close(model.logits.grad, torch.tensor([[[-0.5, 0.0, 0.5]]]))


def test_the_entropy_gradient_is_the_derivative() -> None:
    logits = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(entropy, (logits,))


def test_mode_and_gradient_tracking_are_the_callers() -> None:
    model = make_policy().train()
    labels = torch.tensor([[3, 4]])
    assert get_response_log_probs(model, labels, labels)["log_probs"].requires_grad
    assert model.training
    with torch.no_grad():
        assert not get_response_log_probs(model, labels, labels)["log_probs"].requires_grad


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3)])
def test_labels_may_have_any_shape(shape: tuple[int, ...]) -> None:
    logits = torch.arange(30.0).sin().view(6, 5)
    labels = torch.tensor([0, 4, 2, 2, 1, 3])
    scored = label_log_probs(logits.view(*shape, 5), labels.view(shape), return_token_entropy=True)
    assert scored["log_probs"].shape == scored["token_entropy"].shape == shape
    expected = [math.log(row.softmax(-1)[label]) for row, label in zip(logits, labels, strict=True)]
    torch.testing.assert_close(scored["log_probs"].flatten(), torch.tensor(expected))
    torch.testing.assert_close(scored["token_entropy"].flatten(), entropy(logits))


def test_entropy_from_logits_and_from_their_log_probs_agree() -> None:
    logits = torch.arange(12.0).cos().view(3, 4) * 6
    torch.testing.assert_close(entropy_from_log_probs(log_softmax(logits)), entropy(logits))
    assert entropy_from_log_probs(torch.tensor([0.0, -math.inf])).item() == 0
