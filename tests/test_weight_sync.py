"""What travels to the server, in which order, and that no failed collective hangs the trainer."""

from __future__ import annotations

import base64
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from gsmrl_helpers.vllm_client import ServerResponseError, ServerTimeoutError
from gsmrl_helpers.weight_sync import (
    NcclTransfer,
    WeightSyncError,
    bits_of,
    checkpoint_weights,
    policy_weights,
    run_together,
)
from tests.tiny_policy import make_policy


class Recorder:
    """A server's client and PyTorch's NCCL in one; writes down what is called, in order."""

    request_timeout = 10.0
    version = "0.32.1"

    def __init__(self, fails: str = "") -> None:
        self.calls: list[str] = []
        self.bodies: dict[str, dict] = {}
        self.sent: list[torch.Tensor] = []
        self.fails = fails

    def get(self, path: str) -> dict:
        return {"world_size": 2, "version": self.version}

    def post(self, path: str, body: dict | None = None, timeout: float = 1.0) -> dict:
        self.calls.append(path)
        self.bodies[path] = body or {}
        if path == self.fails:
            raise ServerResponseError("HTTP 500: out of memory", 500)
        return {}

    def unique_id(self) -> bytes:
        return bytes(range(128))

    def init_rank(self, world_size: int, unique_id: bytes, rank: int) -> str:
        return f"rank {rank} of {world_size}"

    def all_reduce(self, tensors: list[torch.Tensor], comms: list[str]) -> None:
        self.calls.append(f"all_reduce {tensors[0].shape[0]} {comms[0]}")

    def broadcast(self, tensors: list[torch.Tensor], comms: list[str]) -> None:
        if self.fails:
            threading.Event().wait()  # the peer never comes
        self.calls.append(f"broadcast {comms[0]}")
        self.sent += tensors


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def test_nccl_joins_the_workers_and_broadcasts_what_it_announces(no_gpu: None) -> None:
    recorder, policy = Recorder(), make_policy()
    transfer = NcclTransfer(recorder, torch.bfloat16, nccl=recorder)
    transfer.open(torch.device("cpu"))
    assert sorted(recorder.calls) == [
        "/init_weight_transfer_engine",
        "all_reduce 1 rank 0 of 3",  # the trainer and two workers; vLLM waits for this sum
    ]
    init_info = recorder.bodies["/init_weight_transfer_engine"]["init_info"]
    assert base64.b64decode(init_info["nccl_unique_id_b64"]) == bytes(range(128))
    assert (init_info["rank_offset"], init_info["world_size"]) == (1, 3)

    recorder.calls.clear()
    transfer.send(policy)
    assert recorder.calls[0] == "/start_weight_update"
    assert recorder.calls[-1] == "/finish_weight_update"
    info = recorder.bodies["/update_weights"]["update_info"]
    parameters = dict(policy.named_parameters())
    assert set(info["names"]) == set(parameters) and set(info["dtype_names"]) == {"bfloat16"}
    assert recorder.calls.count("broadcast rank 0 of 3") == len(info["names"])
    for name, shape, sent in zip(info["names"], info["shapes"], recorder.sent, strict=True):
        assert list(sent.shape) == shape and sent.is_contiguous()
        assert torch.equal(sent, parameters[name].bfloat16())


def test_a_server_that_refuses_an_update_does_not_leave_the_trainer_waiting(no_gpu: None) -> None:
    recorder = Recorder(fails="/update_weights")
    transfer = NcclTransfer(recorder, torch.float32, nccl=recorder)
    transfer.open(torch.device("cpu"))
    with pytest.raises(ServerResponseError, match="out of memory"):
        transfer.send(make_policy())


def test_a_collective_that_never_ends_runs_out_of_time() -> None:
    with pytest.raises(ServerTimeoutError, match="not done in 0 s"):
        run_together(lambda: None, threading.Event().wait, timeout=0.1)


def test_tied_weights_are_sent_under_each_of_their_names() -> None:
    policy = make_policy()
    policy.config.tie_word_embeddings = True
    policy.lm_head.weight = policy.model.embed_tokens.weight
    weights = dict(policy_weights(policy, torch.float32))
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    assert set(weights) == set(policy.state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
def test_a_checkpoint_has_the_bits_of_the_policy_that_it_is_of(
    tmp_path: Path, dtype: torch.dtype, tied: bool
) -> None:
    policy = make_policy()
    if tied:
        policy.config.tie_word_embeddings = True
        policy.lm_head.weight = policy.model.embed_tokens.weight
    policy.save_pretrained(tmp_path)
    saved = bits_of(checkpoint_weights(str(tmp_path)), dtype)
    ours = bits_of(policy_weights(policy, dtype), dtype)
    assert ours.keys() - saved.keys() == ({"lm_head.weight"} if tied else set())
    assert saved == {name: ours[name] for name in saved}
    with torch.no_grad():
        policy.model.norm.weight[0] *= 1.01
    changed = bits_of(policy_weights(policy, dtype), dtype)
    assert [name for name in ours if ours[name] != changed[name]] == ["model.norm.weight"]


def test_bits_are_the_same_where_the_sign_of_a_zero_differs() -> None:
    signed = [("w", torch.tensor([-0.0, 1.0]))], [("w", torch.tensor([0.0, 1.0]))]
    assert bits_of(signed[0], torch.float32) == bits_of(signed[1], torch.float32)


def test_a_checkpoint_without_safetensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightSyncError, match=r"has no \*\.safetensors"):
        list(checkpoint_weights(str(tmp_path)))


@pytest.mark.parametrize("version", ["0.31.0", "0.34.0", "0.3.2", "1.0.0"])
def test_a_vllm_of_another_interface_is_refused_before_anybody_waits(version: str) -> None:
    recorder = Recorder()
    recorder.version = version
    with pytest.raises(WeightSyncError, match=rf"vLLM {version}.*0\.32 and 0\.33.*reload"):
        NcclTransfer(recorder, torch.float32, nccl=recorder).open(torch.device("cpu"))
    assert recorder.calls == []
