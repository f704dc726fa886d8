"""Policies as the profiles for GPUs load them: attention, checkpointing, adapters, a server."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

import pytest
import torch

from gsmrl_helpers import world
from gsmrl_helpers.config import LoraSettings, make_config
from gsmrl_helpers.engine import LocalEngine
from gsmrl_helpers.lora import add_lora, merged_parameters
from gsmrl_helpers.master_weights import make_optimizer
from gsmrl_helpers.records import make_manifest
from gsmrl_helpers.sampling import SamplingParams
from gsmrl_helpers.vllm_config import VLLMConfig
from gsmrl_helpers.vllm_process import arguments, environment
from tests import tiny_policy, tiny_sampler

PROMPT = "a"
LORA = LoraSettings(rank=2, alpha=8)
GPU = {"device": "cuda:0", "dtype": "bfloat16"}


# --- attention and devices -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "has_flash", "chosen", "why"),
    [
        ({"attention": "sdpa"}, True, "sdpa", "as set"),
        ({"attention": "auto"}, True, "sdpa", "needs a GPU"),
        ({"attention": "auto", **GPU}, True, "flash_attention_2", "found"),
        ({"attention": "auto", **GPU}, False, "sdpa", "gsmrl-helpers[gpu]"),
        ({"attention": "auto", **GPU, "dtype": "float32"}, True, "sdpa", "no float32"),
        ({"attention": "flash_attention_2", **GPU}, True, "flash_attention_2", "as set"),
    ],
)
def test_which_attention_a_policy_runs_with(
    monkeypatch: pytest.MonkeyPatch, changes: dict, has_flash: bool, chosen: str, why: str
) -> None:
    spec = ModuleSpec("flash_attn", None) if has_flash else None
    monkeypatch.setattr(world, "find_spec", lambda name: spec)
    attention, reason = world.choose_attention(make_config("pocket", overrides=changes))
    assert attention == chosen and why in reason


def test_flash_attention_that_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "find_spec", lambda name: None)
    config = make_config("pocket", overrides={"attention": "flash_attention_2", **GPU})
    with pytest.raises(ValueError, match=r"flash-attn is not installed.*set attention=auto"):
        world.choose_attention(config)


def test_a_gpu_that_is_not_there_or_has_no_bf16_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = make_config("pocket", overrides=GPU)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="sees no CUDA device: use --profile pocket"):
        world.load_policy(config)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(ValueError, match=r"Tesla T4 computes no bf16.*--profile one_gpu"):
        world.load_policy(config)


def test_what_was_chosen_is_printed_and_in_the_manifest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = make_config("pocket", overrides={"attention": "auto"})
    model, _ = world.load_policy(config)
    assert model.config._attn_implementation == "sdpa"
    printed = capsys.readouterr().out
    assert printed.startswith("policy: data/pocket_policy, float32 on cpu, sdpa (FlashAttention-2")
    manifest = make_manifest(config, "sha", "command")
    assert manifest["machine"]["attention"].startswith("sdpa, FlashAttention-2 needs a GPU")
    world.load_policy(make_config("pocket"))
    assert capsys.readouterr().out == ""


def test_checkpointing_changes_no_gradient() -> None:
    gradients = []
    for checkpointing in (False, True):
        config = make_config("pocket", overrides={"gradient_checkpointing": checkpointing})
        model, _ = world.load_policy(config)
        assert model.is_gradient_checkpointing == checkpointing and model.training
        model(torch.arange(5, 25).view(2, 10)).logits.square().mean().backward()
        gradients.append([p.grad for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        assert torch.allclose(plain, recomputed, rtol=1e-4, atol=1e-7)


# --- adapters ---


def moved_policy(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A policy whose adapters are no longer zero, and take part in what it computes."""
    pytest.importorskip("peft", reason="LoRA needs the extra lora")
    model = add_lora(tiny_policy.make_policy(dtype=dtype), LORA)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn_like(parameter) / 4
    return model


def test_adapters_start_as_nothing_and_are_all_that_trains() -> None:
    pytest.importorskip("peft", reason="LoRA needs the extra lora")
    ids = torch.arange(5, 15).view(2, 5)
    plain = tiny_policy.make_policy(dtype=torch.bfloat16)
    expected = plain(ids).logits
    model = add_lora(plain, LORA)
    assert torch.equal(model(ids).logits, expected)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in name and p.dtype == torch.float32 for name, p in trained.items())
    assert len(trained) == 2 * 7 * 2
    optimizer = make_optimizer(make_config("pocket"), model.parameters())
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(trained)


def test_merged_weights_compute_the_same_under_the_plain_names() -> None:
    model = moved_policy()
    merged = dict(merged_parameters(model))
    plain = tiny_policy.make_policy(seed=9)
    assert not plain.load_state_dict(merged, strict=True).missing_keys
    ids = torch.arange(5, 15).view(2, 5)
    unmerged = tiny_policy.make_policy()(ids).logits
    assert torch.allclose(plain(ids).logits, model(ids).logits, atol=1e-5)
    assert not torch.allclose(unmerged, model(ids).logits, atol=1e-2)


def test_a_merged_matrix_by_hand_and_a_policy_without_adapters() -> None:
    model = moved_policy(torch.bfloat16)
    name = "model.layers.1.mlp.down_proj"
    layer = model.get_submodule(name)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    expected = layer.base_layer.weight.float() + 8 / 2 * b @ a
    merged = dict(merged_parameters(model))[f"{name}.weight"]
    assert merged.dtype == torch.bfloat16
    assert torch.allclose(merged.float(), expected, atol=1e-6, rtol=2**-8)
    plain = tiny_policy.make_policy()
    assert dict(merged_parameters(plain)).keys() == plain.state_dict().keys()


def test_the_local_engine_samples_from_adapters_where_they_are() -> None:
    pytest.importorskip("peft", reason="LoRA needs the extra lora")
    tokenizer = tiny_sampler.make_tokenizer()
    params = SamplingParams(n=2, max_tokens=12, temperature=1.0, seed=3)
    model = tiny_sampler.make_olmo2(len(tokenizer))
    model = add_lora(model, LORA)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())
            )
    merged = tiny_sampler.make_olmo2(len(tokenizer))
    unmerged = [
        c.token_ids for c in LocalEngine(merged, tokenizer).generate_completions([PROMPT], params)
    ]
    merged.load_state_dict(dict(merged_parameters(model)))
    with_adapters, with_merged = (
        [c.token_ids for c in LocalEngine(m, tokenizer).generate_completions([PROMPT], params)]
        for m in (model, merged)
    )
    assert with_adapters == with_merged != unmerged


def test_a_missing_peft_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    config = make_config("pocket", overrides={"lora": {"rank": 2, "alpha": 4}})
    with pytest.raises(ValueError, match=r"lora needs peft.*pip install 'gsmrl-helpers\[lora\]'"):
        world.load_policy(config)


# --- the server on a shared GPU ---


def test_a_server_that_shares_a_gpu_can_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    server = VLLMConfig(python="python", device="cuda:1", sleep=True)
    assert "--enable-sleep-mode" in arguments("policy", server, "float32", 1, "name")
    awake = server.model_copy(update={"sleep": False})
    assert "--enable-sleep-mode" not in arguments("policy", awake, "float32", 1, "name")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert environment("policy", server)["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert environment("policy", server)["CUDA_VISIBLE_DEVICES"] == "3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with pytest.raises(ValueError, match="cuda:1, but 1 GPUs"):
        environment("policy", server)
