"""The planner against live bytes of real steps, and against counts at OLMo-2-1B's own shape."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from gsmrl_helpers import response_scoring
from gsmrl_helpers.accumulation import dropout_off
from gsmrl_helpers.memory import LiveBytes
from gsmrl_helpers.model_shape import KNOWN_SHAPES, ModelShape, model_shape
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.planner import (
    Workload,
    activations,
    kv_bytes_per_token,
    logits,
    recomputed_layer,
    resident,
    scoring,
    training_state,
)
from gsmrl_helpers.response_scoring import score_responses, score_with_head
from tests.planned_step import make_model, measured_and_planned, small_shape

OLMO, QWEN = KNOWN_SHAPES["allenai/OLMo-2-0425-1B"], KNOWN_SHAPES["Qwen/Qwen2.5-0.5B"]
LORA = {"rank": 8, "alpha": 16}


@pytest.fixture(autouse=True)
def rows_go_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows go through the model as on a GPU, for which the planner plans."""
    monkeypatch.setattr(response_scoring, "positions_are_absolute", lambda _: False)


@pytest.mark.parametrize("shape", [OLMO, QWEN, small_shape(architecture="qwen2", n_kv_heads=2)])
def test_parameters_are_those_of_the_model(shape: ModelShape) -> None:
    with FakeTensorMode():
        parameters = list(make_model(shape).parameters())
    assert shape.n_parameters == sum(p.numel() for p in parameters)
    assert shape.largest_parameter == max(p.numel() for p in parameters)


def test_known_sizes() -> None:
    assert OLMO.n_parameters == 1_484_916_736 and QWEN.n_parameters == 494_032_768
    assert OLMO.n_matrix_parameters == OLMO.n_parameters - 100_352 * 2048 - (4 * 16 + 1) * 2048


def test_the_pocket_policy_s_shape_is_read_from_its_folder() -> None:
    shape = model_shape(ROOT / "data" / "pocket_policy")
    assert (shape.vocab_size, shape.hidden_size, shape.n_layers) == (672, 128, 4)
    assert not shape.tied and shape.head_dim == 32
    with pytest.raises(ValueError, match="known: allenai/OLMo-2-0425-1B"):
        model_shape("gpt2")
    with pytest.raises(ValueError, match="model_type='gpt2'"):
        ModelShape.from_config({"model_type": "gpt2"})


def test_memory_of_a_billion_and_a_half_parameters() -> None:
    n = 1_500_000_000
    assert training_state(n) == {"weights": 3e9, "gradients": 3e9, "moments": 12e9, "masters": 0}
    in_gb = {
        "fp32 moments": training_state(1_485_000_000),
        "bf16 moments": training_state(1_485_000_000, moments="bfloat16"),
        "masters": training_state(1_485_000_000, master_weights=True),
        "8 bit": training_state(1_485_000_000, moments="8bit"),
    }
    sums = {name: round(sum(parts.values()) / 1e9, 2) for name, parts in in_gb.items()}
    assert sums == {"fp32 moments": 17.82, "bf16 moments": 11.88, "masters": 23.76, "8 bit": 8.96}


@pytest.mark.parametrize(
    ("shape", "settings", "phase"),
    [
        ({}, {}, "backward, head"),
        ({}, {"gradient_accumulation_steps": 8}, "backward, head"),
        ({"vocab_size": 3000}, {}, "backward, head"),
        ({"hidden_size": 128, "head_dim": 32, "n_layers": 5}, {}, "backward, head"),
        ({}, {"dtype": "bfloat16"}, "backward, head"),
        ({}, {"dtype": "bfloat16", "master_weights": True}, "backward, head"),
        ({}, {"gradient_checkpointing": True}, "backward, layers"),
        ({"vocab_size": 40}, {"gradient_checkpointing": True}, "backward, layers"),
        ({}, {"lora": LORA}, "backward, layers"),
        ({}, {"lora": LORA, "dtype": "bfloat16"}, "forward"),
        ({"architecture": "qwen2", "n_kv_heads": 2, "tied": True}, {}, "backward, head"),
        ({"architecture": "qwen2", "n_kv_heads": 2}, {"dtype": "bfloat16"}, "backward, head"),
        ({}, {"optimizer": "adamw_8bit"}, "backward, head"),
        ({}, {"entropy_coef": 0.01}, "backward, head"),
    ],
    ids=str,
)
def test_real_steps_are_within_15_percent(shape: dict, settings: dict, phase: str) -> None:
    if "lora" in settings:
        pytest.importorskip("peft", reason="LoRA needs the extra lora")
    if "optimizer" in settings:
        pytest.importorskip("bitsandbytes", reason="8-bit AdamW needs the extra adamw8bit")
    measured, planned, planned_phase = measured_and_planned(small_shape(**shape), **settings)
    assert planned == pytest.approx(measured, rel=0.15)
    assert planned_phase == phase


def test_an_update_of_few_tokens_is_the_peak_with_masters() -> None:
    shape = small_shape(vocab_size=3000)
    measured, planned, phase = measured_and_planned(
        shape, 4, 2, dtype="bfloat16", master_weights=True, sampling_max_tokens=2
    )
    assert phase == "update" and planned == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("shape", [OLMO, QWEN], ids=["OLMo-2-1B", "Qwen2.5-0.5B"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_microbatch_at_full_scale_without_its_memory(
    shape: ModelShape, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fake tensors have shapes and no contents: the real code runs, and nothing is computed.
    n_rows, n_tokens, n_response = 2, 896, 512
    work = Workload(
        shape=shape,
        dtype="bfloat16",
        gradient_checkpointing=checkpointing,
        batch_rows=n_rows,
        microbatch_rows=n_rows,
        row_tokens=n_tokens,
        response_tokens=n_response,
    )
    monkeypatch.setattr(response_scoring, "LOGITS_AT_ONCE", {"cpu": work.logits_at_once})
    with FakeTensorMode():
        model = make_model(shape, dtype="bfloat16", gradient_checkpointing=checkpointing)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        ids = torch.zeros(n_rows, n_tokens, dtype=torch.long)
        with dropout_off(model), LiveBytes() as memory:
            # A mask has contents: in its place the response is a slice.
            # Without a cache, rows whose positions can't be read are taken for packed ones.
            hidden = model.model(ids).last_hidden_state[:, -n_response:]
            labels = ids[:, -n_response:].flatten()
            hidden = hidden.flatten(end_dim=1)
            loss = score_with_head(model.lm_head, hidden, labels)["log_probs"].sum()
            del hidden
            forward, memory.peak = memory.peak, memory.live
            loss.backward()
    kept, over_vocabulary = activations(work), logits(work)
    assert kept + over_vocabulary["forward"] == pytest.approx(forward, rel=0.01)
    backward = kept + max(over_vocabulary["backward"], recomputed_layer(work))
    assert backward == pytest.approx(memory.peak, rel=0.05)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("vocab_size", [40, 600, 3000])
def test_a_pass_without_gradients(dtype: str, vocab_size: int) -> None:
    shape = small_shape(vocab_size=vocab_size)
    model = make_model(shape, dtype=dtype)
    ids = torch.zeros(6, 40, dtype=torch.long)
    mask = torch.arange(40).expand(6, -1) >= 28
    with torch.no_grad(), LiveBytes() as memory:
        score_responses(model, ids, ids, mask)
    work = Workload(
        shape=shape,
        dtype=dtype,
        batch_rows=6,
        microbatch_rows=1,
        row_tokens=40,
        response_tokens=12,
        scored_at_once=8,
    )
    assert sum(scoring(work).values()) == pytest.approx(memory.peak, rel=0.15)


def test_keys_and_values_are_those_of_the_cache() -> None:
    shape = small_shape(architecture="qwen2", n_kv_heads=2)
    with torch.no_grad():
        cache = make_model(shape)(torch.zeros(3, 7, dtype=torch.long), use_cache=True)
    layers = cache.past_key_values.layers
    n_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
    assert n_bytes == 3 * 7 * kv_bytes_per_token(shape, 4)
    assert kv_bytes_per_token(OLMO, 2) == 131_072


def test_what_stays_counts_a_reference_and_frozen_weights() -> None:
    sizes = {"shape": OLMO, "dtype": "bfloat16", "batch_rows": 8, "microbatch_rows": 1}
    sizes |= {"row_tokens": 9, "response_tokens": 5}
    n = OLMO.n_parameters
    plain = resident(Workload(**sizes))
    assert plain == {"weights": 2 * n, "gradients": 2 * n, "optimizer": 4 * n}
    with_reference = resident(Workload(**sizes, has_reference=True))
    assert with_reference["weights"] == 4 * n
    adapters = OLMO.n_lora_parameters(16)
    lora = resident(Workload(**sizes, lora_rank=16))
    assert adapters == 16 * 16 * (4 * 4096 + 3 * 10_240)
    assert lora == {
        "weights": 2 * n + 4 * adapters,
        "gradients": 4 * adapters,
        "optimizer": 8 * adapters,
    }
