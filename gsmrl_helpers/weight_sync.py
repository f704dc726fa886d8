"""Getting the trained weights into a running vLLM server, and a check that they arrived.

Two transports, one control flow (`VLLMServer.sync_policy_weights`): pause, send, reset the prefix
cache, resume, ask. `NcclTransfer` broadcasts from GPU to GPU through vLLM's interface for
reinforcement learning; `ReloadTransfer` writes a file that the server loads in place.
"""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from pathlib import Path
from typing import Any, Protocol

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from gsmrl_helpers.engine import evaluation_mode
from gsmrl_helpers.log_probs import get_response_log_probs
from gsmrl_helpers.lora import merged_parameters
from gsmrl_helpers.server_process import ServerError
from gsmrl_helpers.vllm_client import ServerTimeoutError, VLLMClient

PROBE = "Ann has 12 apples and buys 5 more. 12 + 5 = 17. She has 17 apples."
NCCL_RELEASES = ("0.32", "0.33")


class WeightSyncError(ServerError):
    """The engine does not have the trainer's weights; the message says what it answered."""


def policy_weights(policy: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """All weights of a policy by their Hugging Face names: tied ones under each of their names,
    adapters merged into what they adapt."""
    for name, tensor in merged_parameters(policy):
        yield name, tensor.to(dtype)


class WeightTransfer(Protocol):
    """How weights travel."""

    def open(self, device: torch.device) -> None:
        """Connect with the server, once it is up."""

    def send(self, policy: nn.Module) -> None:
        """Put the policy's weights into the paused server."""


class ReloadTransfer:
    """Through a file: the server's `reload_weights` loads it into the parameters that it has.

    Args:
        client: the server's.
        folder: where the file is written; the server must see it.
        dtype: of the server's weights.
    """

    def __init__(self, client: VLLMClient, folder: Path, dtype: torch.dtype) -> None:
        self.client, self.folder, self.dtype = client, folder / "weights", dtype

    def open(self, device: torch.device) -> None:
        self.folder.mkdir(exist_ok=True)

    def send(self, policy: nn.Module) -> None:
        # Tied weights share memory, which a safetensors file cannot.
        weights = {name: t.cpu().clone() for name, t in policy_weights(policy, self.dtype)}
        temporary = self.folder / "model.tmp"
        save_file(weights, temporary)
        os.replace(temporary, self.folder / "model.safetensors")  # the old one may be mapped
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(self.folder)}}
        self.client.post("/collective_rpc", body, self.client.request_timeout)


class NcclTransfer:
    """By NCCL broadcast: the trainer is rank 0, the server's workers are the ranks after it.

    Written against vLLM 0.32 and 0.33 (`vllm/distributed/weight_transfer/nccl_engine.py`), and no
    other is accepted, as a broadcast that is read otherwise may wait for ever; the trainer's
    side is PyTorch's own NCCL, so that the trainer need not import vLLM. Both must load the same
    NCCL release. NCCL refuses two ranks on one GPU: there, use `ReloadTransfer`. A broadcast whose
    other side failed may keep the trainer's GPU waiting for ever; end the process then, and the run
    goes on from its checkpoint. Not run on GPUs yet: the tests replace `nccl` and check the order
    of the calls.

    Args:
        client: the server's, started with ``--weight-transfer-config '{"backend": "nccl"}'``.
        dtype: of the server's weights; halves what travels where the trainer keeps float32.
        nccl: `torch.cuda.nccl`, or what has its `unique_id`, `init_rank`, `all_reduce` and
            `broadcast`.
    """

    def __init__(self, client: VLLMClient, dtype: torch.dtype, nccl: Any = None) -> None:
        self.client, self.dtype = client, dtype
        self.nccl = torch.cuda.nccl if nccl is None else nccl
        self.communicator: Any = None
        self.device: torch.device | None = None

    def open(self, device: torch.device) -> None:
        version = self.client.get("/version")["version"]
        if not version.startswith(tuple(f"{release}." for release in NCCL_RELEASES)):
            raise WeightSyncError(
                f"the server is vLLM {version}; weight_sync: nccl is written against the interface "
                f"of {' and '.join(NCCL_RELEASES)}. Install one of them, or set weight_sync: reload"
            )
        world_size = 1 + self.client.get("/get_world_size")["world_size"]
        unique_id = self.nccl.unique_id()
        init_info = {
            "nccl_unique_id_b64": base64.b64encode(unique_id).decode(),
            "rank_offset": 1,
            "world_size": world_size,
        }
        self.device = device

        def join() -> None:
            with torch.cuda.device(device):
                self.communicator = self.nccl.init_rank(world_size, unique_id, 0)
                # The workers warm up with one sum over all ranks, and wait for ours.
                self.nccl.all_reduce([torch.zeros(1, device=device)], comms=[self.communicator])

        timeout = self.client.request_timeout
        run_together(
            lambda: self.client.post(
                "/init_weight_transfer_engine", {"init_info": init_info}, timeout
            ),
            join,
            timeout,
        )

    def send(self, policy: nn.Module) -> None:
        weights = list(policy_weights(policy, self.dtype))
        update_info = {
            "names": [name for name, _ in weights],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in weights],
            "shapes": [list(tensor.shape) for _, tensor in weights],
        }

        def broadcast() -> None:
            with torch.cuda.device(self.device):
                for _, tensor in weights:
                    self.nccl.broadcast([tensor.contiguous()], comms=[self.communicator])
                torch.cuda.synchronize()

        timeout = self.client.request_timeout
        self.client.post("/start_weight_update", timeout=timeout)
        run_together(
            lambda: self.client.post("/update_weights", {"update_info": update_info}, timeout),
            broadcast,
            timeout,
        )
        self.client.post("/finish_weight_update", timeout=timeout)


def run_together(server: Callable[[], Any], trainer: Callable[[], Any], timeout: float) -> None:
    """Run the two sides of a collective at the same time.

    A side whose peer failed waits for ever, so the first error ends the wait and the stuck side is
    left to a daemon thread; its communicator is of no use after that.

    Raises:
        ServerTimeoutError: neither failed and not both were done in `timeout` seconds.
    """
    futures = [_in_daemon_thread(side) for side in (server, trainer)]
    done, waiting = wait(futures, timeout, FIRST_EXCEPTION)
    for future in done:
        future.result()
    if waiting:
        raise ServerTimeoutError(f"a transfer of weights was not done in {timeout:.0f} s")


def _in_daemon_thread(call: Callable[[], Any]) -> Future:
    future: Future = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # handed on to whoever waits
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class ArrivalCheck:
    """Asks the engine after a sync how likely a fixed text is, and the trainer, too.

    The two must agree within √ε of the engine's dtype, on average over the tokens (.0003 in
    float32, .09 in bfloat16, .03 in float16): a layer that was missed, a head that stayed or half
    a file do not. And where the weights that were sent are not those that the engine had, its
    answer must not be the one that it gave with them. It is asked when this is made, too, so that
    the first sync is checked like all others. One step may move the policy by less than bfloat16
    rounds: then the weights are the same.

    Args:
        client: the server's; it still serves the checkpoint.
        probe_ids: the text's token ids, at least two.
        dtype: of the server's weights.
        checkpoint: the folder or the Hub's name of the weights that the server started with.
    """

    def __init__(
        self, client: VLLMClient, probe_ids: list[int], dtype: torch.dtype, checkpoint: str
    ) -> None:
        self.client, self.probe_ids, self.dtype = client, probe_ids, dtype
        self.tolerance = torch.finfo(dtype).eps ** 0.5
        self._sent = bits_of(checkpoint_weights(checkpoint), dtype)
        self._answer = client.score(probe_ids)

    def check(self, policy: nn.Module) -> float:
        """Compare, and return the mean difference in nats.

        Raises:
            WeightSyncError: the engine does not have the policy's weights.
        """
        sent = bits_of(policy_weights(policy, self.dtype), self.dtype)
        answer = self.client.score(self.probe_ids)
        # A checkpoint names tied weights once, the policy names them twice.
        changed = any(sent[name] != self._sent[name] for name in sent.keys() & self._sent.keys())
        if changed and answer == self._answer:
            raise WeightSyncError(
                "the update reached no weight: the engine's log-probabilities are, to the last "
                "bit, those before it, though it was sent other weights than it had"
            )
        ours = self._trainer_log_probs(policy)
        difference = (ours - torch.tensor(answer)).abs().mean().item()
        if not difference <= self.tolerance:  # NaN is not
            raise WeightSyncError(
                f"after the update trainer and engine disagree by {difference:.2g} nats a token "
                f"on average (rounding: {self.tolerance:.0e}): the engine has other weights"
            )
        self._sent, self._answer = sent, answer
        return difference

    @torch.no_grad()
    def _trainer_log_probs(self, policy: nn.Module) -> Tensor:
        device = next(policy.parameters()).device
        ids = torch.tensor([self.probe_ids], device=device)
        with evaluation_mode(policy):
            return get_response_log_probs(policy, ids[:, :-1], ids[:, 1:])["log_probs"][0].cpu()


def checkpoint_weights(checkpoint: str) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a checkpoint's safetensors files, one after the other.

    Args:
        checkpoint: a folder, or a name on the Hub whose files have been downloaded.

    Raises:
        WeightSyncError: it has no such files.
    """
    folder = Path(checkpoint)
    if not folder.is_dir():
        folder = Path(snapshot_download(checkpoint, local_files_only=True))
    if not (files := sorted(folder.glob("*.safetensors"))):
        raise WeightSyncError(
            f"{checkpoint} has no *.safetensors, with which the first sync is compared: save the "
            "policy with save_pretrained"
        )
    for file in files:
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (it is no mapping)
                yield name, tensors.get_tensor(name)


def bits_of(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> dict[str, int]:
    """For each weight a sum over its bits in `dtype`; -0 counts as 0, as it computes the same."""
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return {
        name: int((tensor.to(dtype) + 0.0).contiguous().view(integer).sum(dtype=torch.int64))
        for name, tensor in weights
    }
