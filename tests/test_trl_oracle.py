"""TRL's own loss code as an independent oracle for losses and their gradients.

`GRPOTrainer._compute_loss` is called on prepared log-probabilities: a stand-in for the trainer
supplies its options, and hands out those log-probabilities where the trainer would run the model.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gsmrl_helpers.losses import (
    aggregate_loss_across_microbatch,
    compute_policy_gradient_loss,
    kl_estimate,
)

grpo_trainer = pytest.importorskip(
    "trl.trainer.grpo_trainer", reason="TRL is not installed (pip install 'trl==1.16.*')"
)

MAX_LENGTH = 9
EPSILON = 0.2


@pytest.fixture
def rollouts() -> dict[str, Tensor]:
    """Six responses of unequal length, about as far off-policy as makes clips bite."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([1, 4, 2, 6, 7, 3])
    old = -2 * torch.rand(6, 7, generator=generator, dtype=torch.float64) - 0.1
    shift = torch.randn(6, 7, generator=generator, dtype=torch.float64)
    return {
        "advantages": torch.randn(6, generator=generator, dtype=torch.float64),
        "old": old,
        "new": old + 0.3 * shift,
        "ref": old - 0.2 * shift.roll(1, 0),
        "entropies": torch.rand(6, 7, generator=generator, dtype=torch.float64),
        "mask": torch.arange(7) < lengths[:, None],
    }


def trl_loss(rollouts: dict[str, Tensor], new: Tensor, **options: Any) -> tuple[Tensor, dict]:
    """The loss of TRL for one whole batch, and the metrics that it logged."""
    metrics = {"train": defaultdict(list)}
    settings = {
        "loss_type": "grpo",
        "importance_sampling_level": "token",
        "beta": 0.0,
        "epsilon_low": EPSILON,
        "epsilon_high": EPSILON,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "use_vllm": False,
        "vllm_importance_sampling_correction": False,
        "max_completion_length": MAX_LENGTH,
        "current_gradient_accumulation_steps": 1,
        "aux_loss_enabled": False,
        "use_adaptive_entropy": False,
        "_entropy_bonus_enabled": False,
        "args": SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        "model": SimpleNamespace(training=True),
        "accelerator": SimpleNamespace(
            num_processes=1,
            sync_gradients=True,
            gather=lambda values: values,
            reduce=lambda values, reduction: values,
        ),
        "_metrics": metrics,
        "_get_per_token_logps_and_entropies": lambda *_, **__: (new, rollouts["entropies"], None),
    }
    mask = rollouts["mask"].long()
    inputs = {
        "prompt_ids": torch.zeros(6, 2, dtype=torch.long),
        "prompt_mask": torch.ones(6, 2, dtype=torch.long),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": rollouts["advantages"],
        "old_per_token_logps": rollouts["old"],
        "ref_per_token_logps": rollouts["ref"],
        "num_items_in_batch": mask.sum(),
    }
    trainer = SimpleNamespace(**{**settings, **options})
    loss = grpo_trainer.GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss, metrics["train"]


def our_loss(
    rollouts: dict[str, Tensor],
    new: Tensor,
    method: str,
    normalization: str,
    constant: float | None,
    kl_coef: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Our loss for the same batch, and the clip fraction."""
    mask = rollouts["mask"]
    token_loss, metadata = compute_policy_gradient_loss(
        rollouts["advantages"], new, method, rollouts["old"], EPSILON, mask
    )
    token_loss = token_loss + kl_coef * kl_estimate(new, rollouts["ref"], "k3")
    loss = aggregate_loss_across_microbatch(token_loss, mask, normalization, constant)
    return loss, metadata["is_clipped"][mask].double().mean()


NUM_TOKENS = 23
CASES = {
    # name: TRL's options, our method, our normalization, our constant
    "grpo": ({}, "grpo", "sequence", None),
    "dr_grpo": ({"loss_type": "dr_grpo"}, "grpo", "constant", 6 * MAX_LENGTH),
    "dapo": ({"loss_type": "dapo"}, "grpo", "token", NUM_TOKENS),
    "gspo": ({"importance_sampling_level": "sequence"}, "gspo", "sequence", None),
    # TRL's epsilon_high is the cap itself, ours the distance of the cap from 1.
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1 + EPSILON}, "cispo", "token", NUM_TOKENS),
    # No clip: an interval that no ratio leaves.
    "noclip": ({"epsilon_low": 1e9, "epsilon_high": 1e9}, "noclip", "sequence", None),
}


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_those_of_trl(
    rollouts: dict[str, Tensor], case: str, kl_coef: float
) -> None:
    options, method, normalization, constant = CASES[case]
    assert rollouts["mask"].sum() == NUM_TOKENS
    ours, theirs = (rollouts["new"].clone().requires_grad_() for _ in range(2))
    loss, clip_fraction = our_loss(rollouts, ours, method, normalization, constant, kl_coef)
    assert (clip_fraction > 0) == (case != "noclip")
    expected, _ = trl_loss(rollouts, theirs, beta=kl_coef, **options)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", ["grpo", "dr_grpo", "dapo"])
def test_the_clip_fraction_is_that_of_trl(rollouts: dict[str, Tensor], case: str) -> None:
    options, method, normalization, constant = CASES[case]
    _, clip_fraction = our_loss(rollouts, rollouts["new"], method, normalization, constant)
    _, metrics = trl_loss(rollouts, rollouts["new"], **options)
    assert 0 < clip_fraction < 1
    assert metrics["clip_ratio/region_mean"] == [pytest.approx(clip_fraction.item(), abs=1e-6)]


def test_the_same_update_on_policy(rollouts: dict[str, Tensor]) -> None:
    # Without old log-probs TRL uses a detached copy of the new ones: a ratio of 1.
    fresh = {**rollouts, "old": rollouts["new"]}
    ours, theirs = (rollouts["new"].clone().requires_grad_() for _ in range(2))
    mask = rollouts["mask"]
    token_loss, _ = compute_policy_gradient_loss(rollouts["advantages"], ours)  # REINFORCE
    aggregate_loss_across_microbatch(token_loss, mask).backward()
    trl_loss(fresh, theirs)[0].backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)
