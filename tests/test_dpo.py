"""The DPO loss, its pairs and its step: known values, extremes, refusals, invariances."""

import math

import pytest
import torch
from torch import Tensor

from gsmrl_helpers import small_batch
from gsmrl_helpers.dpo import (
    batches_of_pairs,
    compute_per_instance_dpo_loss,
    dpo_loss,
    dpo_step,
    pair_log_probs,
)
from gsmrl_helpers.engine import LocalEngine
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.preferences import PreferencePair, verifier_pairs
from gsmrl_helpers.rollouts import sample_rollouts
from gsmrl_helpers.scoring import response_log_prob
from gsmrl_helpers.sft_data import ALPACA_TEMPLATE, fill_template
from gsmrl_helpers.tokenization import encode
from gsmrl_helpers.world import load_policy, load_problems

CONFIG = experiment_config("on-policy")


def loss_of(margin: float, beta: float = 0.1, dtype: torch.dtype = torch.float64) -> Tensor:
    zero = torch.zeros(1, dtype=dtype)
    return dpo_loss(zero + margin, zero, zero, zero, beta)


def test_known_values() -> None:
    log_probs = torch.tensor([-3.0, -70.0, -0.1], dtype=torch.float64)
    same = dpo_loss(log_probs, log_probs - 5, log_probs, log_probs - 5, 0.1)
    assert torch.allclose(same, torch.full_like(same, math.log(2)), rtol=1e-12)
    assert loss_of(5.0).item() == pytest.approx(math.log(1 + math.exp(-0.5)), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("margin", [-1e4, 1e4])
def test_margins_of_a_thousand_are_finite(margin: float, dtype: torch.dtype) -> None:
    margins = torch.tensor([margin], dtype=dtype, requires_grad=True)
    zero = torch.zeros_like(margins)
    loss = dpo_loss(margins, zero, zero, zero, 0.1)
    loss.sum().backward()
    assert loss.item() == pytest.approx(max(0.0, -0.1 * margin), abs=1e-12)
    assert margins.grad.item() == pytest.approx(-0.1 if margin < 0 else 0.0, abs=1e-8)


def test_only_the_difference_of_the_log_ratios_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    chosen, rejected, ref_chosen, ref_rejected, shift = torch.randn(
        5, 9, generator=generator, dtype=torch.float64
    )
    loss = dpo_loss(chosen, rejected, ref_chosen, ref_rejected, 0.3)
    moved = dpo_loss(chosen - shift, rejected - shift, ref_chosen, ref_rejected, 0.3)
    assert torch.allclose(loss, moved, rtol=1e-12)


@pytest.mark.parametrize("beta", [0.0, -1.0, math.nan])
def test_a_beta_that_is_not_above_0_is_refused(beta: float) -> None:
    with pytest.raises(ValueError, match="beta"):
        loss_of(1.0, beta)


def test_other_shapes_are_refused() -> None:
    one = torch.zeros(3)
    with pytest.raises(ValueError, match=r"\(B,\)"):
        dpo_loss(one, one, one, one[:2], 0.1)
    with pytest.raises(ValueError, match=r"\(B,\)"):
        dpo_loss(*[torch.zeros(3, 1)] * 4, 0.1)


@pytest.fixture(scope="module")
def pairs() -> list[PreferencePair]:
    model, tokenizer = load_policy(CONFIG)
    rollouts = sample_rollouts(
        LocalEngine(model.eval(), tokenizer),
        CONFIG.prompt_object(),
        load_problems(CONFIG, "train")[:24],
        group_size=8,
        seed=0,
        temperature=1.0,
        top_p=1.0,
        max_tokens=CONFIG.sampling_max_tokens,
    )
    return verifier_pairs(rollouts, per_prompt=1, seed=0)


def test_log_probs_are_those_of_a_plain_loop(pairs: list[PreferencePair]) -> None:
    model, tokenizer = load_policy(CONFIG)
    with torch.no_grad():
        found = pair_log_probs(model.eval(), tokenizer, pairs[:2])
        for answers, sums in zip(("chosen", "rejected"), found, strict=True):
            for pair, value in zip(pairs, sums.tolist(), strict=False):
                ids = [encode(tokenizer, text) for text in (pair.prompt, getattr(pair, answers))]
                assert value == pytest.approx(response_log_prob(model, *ids), abs=1e-3)


def test_steps_start_at_log_2_and_raise_the_margin(pairs: list[PreferencePair]) -> None:
    model, tokenizer = load_policy(CONFIG)
    with torch.no_grad():
        reference = pair_log_probs(model, tokenizer, pairs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    rows = [dpo_step(model, tokenizer, optimizer, pairs, reference, 0.1, 1.0) for _ in range(4)]
    assert rows[0]["loss"] == pytest.approx(math.log(2), abs=1e-4)
    losses = [row["loss"] for row in rows]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.01
    assert rows[-1]["chosen_log_ratio"] > rows[-1]["rejected_log_ratio"]


def test_batches_are_the_seeds_and_leave_none_out() -> None:
    batches = list(batches_of_pairs(10, 3, seed=0, epoch=1))
    assert [len(batch) for batch in batches] == [3, 3, 3]
    assert len({row for batch in batches for row in batch}) == 9
    assert batches == list(batches_of_pairs(10, 3, seed=0, epoch=1))
    assert batches != list(batches_of_pairs(10, 3, seed=0, epoch=2))
    assert batches != list(batches_of_pairs(10, 3, seed=1, epoch=1))
    for size in (0, 11):
        with pytest.raises(ValueError, match="1 to 10"):
            list(batches_of_pairs(10, size, seed=0, epoch=1))


def test_the_loss_of_an_instance_by_hand() -> None:
    """Words of the template are unknown, and after these every word has 1/10: policy .1 · .5 · .2
    and .1 · .8 · .5, end tokens included, reference 1/1000 twice. (10/40)^.5 = 1/2, σ = 1/3."""
    tokenizer, policy = small_batch.make_tokenizer(), small_batch.make_policy()
    uniform = small_batch.TablePolicy(torch.zeros(10, 10, dtype=torch.float64))
    loss = compute_per_instance_dpo_loss(policy, uniform, tokenizer, 0.5, "1 +", "so 4", "5 .")
    assert loss.shape == () and loss.item() == pytest.approx(math.log(3), rel=1e-9)
    loss.backward()
    assert policy.table.grad.abs().max() > 0.1 and uniform.table.grad is None


def test_the_loss_of_an_instance_is_that_of_the_four_log_probs(pairs: list[PreferencePair]) -> None:
    models = [load_policy(CONFIG)[0].eval() for _ in range(2)]
    tokenizer, end = load_policy(CONFIG)[1], "<|endoftext|>"
    with torch.no_grad():
        models[0].lm_head.weight.mul_(1.1)
    pair = pairs[0]
    ours = PreferencePair(
        fill_template(ALPACA_TEMPLATE, pair.prompt), pair.chosen + end, pair.rejected + end
    )
    with torch.no_grad():
        found = [pair_log_probs(model, tokenizer, [ours]) for model in models]
        loss = compute_per_instance_dpo_loss(
            *models, tokenizer, 2.0, pair.prompt, pair.chosen, pair.rejected
        )
    assert loss.item() == pytest.approx(dpo_loss(*found[0], *found[1], 2.0).item(), abs=1e-3)
    assert abs(loss.item() - math.log(2)) > 0.01
