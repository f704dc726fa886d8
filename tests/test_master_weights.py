"""Optimizers of a run: what they keep, what moves, and that masters are plain float32 training."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from gsmrl_helpers import load_problems
from gsmrl_helpers.config import RunConfig, make_config
from gsmrl_helpers.loop import update_policy
from gsmrl_helpers.master_weights import MasterWeights, make_optimizer
from tests.tiny_trainer import make_trainer, tiny_config


def bf16_config(**overrides: object) -> RunConfig:
    return make_config("pocket", overrides={"dtype": "bfloat16", **overrides})


def parameters(values: float = 0.02, dtype: torch.dtype = torch.bfloat16) -> list[nn.Parameter]:
    return [nn.Parameter(torch.full((3, 4), values, dtype=dtype)), nn.Parameter(torch.ones(5))]


def test_masters_follow_float32_training_to_the_last_bit() -> None:
    torch.manual_seed(0)
    start = [torch.randn(7, 5).bfloat16(), torch.randn(6).bfloat16()]
    rounded = [nn.Parameter(p.clone()) for p in start]
    exact = [nn.Parameter(p.float()) for p in start]
    masters = make_optimizer(bf16_config(master_weights=True, weight_decay=0.1), rounded)
    adamw = make_optimizer(make_config("pocket", overrides={"weight_decay": 0.1}), exact)
    for _ in range(20):
        for ours, plain in zip(rounded, exact, strict=True):
            ours.grad = torch.randn(ours.shape).bfloat16()
            plain.grad = ours.grad.float()
        masters.step()
        adamw.step()
    for ours, master, plain in zip(rounded, masters.masters, exact, strict=True):
        assert torch.equal(master, plain) and torch.equal(ours, plain.bfloat16())
        assert not torch.equal(plain, start[0 if plain.dim() == 2 else 1].float())


def test_a_parameter_without_gradient_stays() -> None:
    still, moving = parameters()
    optimizer = make_optimizer(bf16_config(master_weights=True), [still, moving])
    moving.grad = torch.ones(5)
    optimizer.step()
    assert (still == torch.tensor(0.02).bfloat16()).all() and (moving < 1).all()


def test_state_goes_back_to_where_it_was() -> None:
    def moved(optimizer: MasterWeights, parameter: nn.Parameter) -> torch.Tensor:
        parameter.grad = torch.ones(3, 4, dtype=torch.bfloat16)
        optimizer.step()
        return optimizer.masters[0].detach().clone()

    weights, config = parameters()[:1], bf16_config(master_weights=True)
    optimizer = make_optimizer(config, weights)
    moved(optimizer, weights[0])
    state = {
        "masters": [m.clone() for m in optimizer.state_dict()["masters"]],
        "optimizer": optimizer.state_dict()["optimizer"],
    }
    other_weights = parameters(0.5)[:1]
    other = make_optimizer(config, other_weights)
    other.load_state_dict(state)
    assert torch.equal(moved(other, other_weights[0]), moved(optimizer, weights[0]))


@pytest.mark.parametrize("value", [0.004, 0.005, 0.02, 1.0])
def test_bf16_weights_do_not_move_at_all_at_1e_5(value: float) -> None:
    for masters, moves in ((False, False), (True, True)):
        (weight, _) = parameters(value)
        before = weight.detach().clone()
        config = bf16_config(master_weights=masters, learning_rate=1e-5)
        optimizer = make_optimizer(config, [weight])
        for _ in range(200):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        # 200 steps of 1e-5 add up to .002; even at 1 that is more than half the spacing below it.
        assert torch.equal(weight, before) is not moves


def test_torch_s_adamw_keeps_moments_in_the_dtype_of_the_weights() -> None:
    for masters, dtype in ((False, torch.bfloat16), (True, torch.float32)):
        (weight, _) = parameters()
        optimizer = make_optimizer(bf16_config(master_weights=masters), [weight])
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        inner = optimizer.optimizer if masters else optimizer
        (state,) = inner.state.values()
        assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == dtype


def test_8_bit_moments_are_bytes_and_steps_nearly_the_same() -> None:
    pytest.importorskip("bitsandbytes", reason="8-bit AdamW needs the extra adamw8bit")
    torch.manual_seed(0)
    start, gradients = torch.randn(128, 64), [torch.randn(128, 64) for _ in range(5)]
    moved = {}
    for name in ("adamw", "adamw_8bit"):
        weight = nn.Parameter(start.clone())
        optimizer = make_optimizer(make_config("pocket", overrides={"optimizer": name}), [weight])
        for gradient in gradients:
            weight.grad = gradient
            optimizer.step()
        moved[name] = weight.detach() - start
        (state,) = optimizer.state.values()
        assert (state.get("state1", start).dtype == torch.uint8) == (name == "adamw_8bit")
    difference = (moved["adamw_8bit"] - moved["adamw"]).norm() / moved["adamw"].norm()
    assert 0 < difference < 0.1


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ValueError, match=r"adamw_8bit needs bitsandbytes.*\[adamw8bit\]"):
        make_optimizer(make_config("pocket", overrides={"optimizer": "adamw_8bit"}), parameters())


@pytest.mark.parametrize("changes", [{"dtype": "float32"}, {"lora": {"rank": 2, "alpha": 4}}])
def test_masters_of_what_needs_none_are_refused(changes: dict) -> None:
    with pytest.raises(ValueError, match="master_weights is for dtype=bfloat16 without lora"):
        bf16_config(master_weights=True, **changes)


def test_the_loop_logs_which_share_of_the_weights_moved() -> None:
    shares = {}
    for dtype in ("float32", "bfloat16"):
        config = tiny_config(dtype=dtype, learning_rate=1e-5, master_weights=dtype == "bfloat16")
        trainer = make_trainer(config)
        trainer.model.to(getattr(torch, dtype))
        trainer.optimizer = make_optimizer(config, trainer.model.parameters())
        rollouts = trainer.sample(load_problems(config, "train")[:4], 4, "test", 0)
        rollouts = replace(rollouts, rewards=torch.arange(16).float() % 2)
        shares[dtype] = update_policy(trainer, rollouts)["changed_parameter_share"]
    assert shares["float32"] > 0.8  # the rest are embeddings of tokens that no row holds
    # A step of 1e-5 is seen by the smallest bf16 weights alone.
    assert 0 < shares["bfloat16"] < 0.3
