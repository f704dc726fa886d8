"""A vLLM server that samples for a trainer: the engine of the assignment's two-GPU layout.

It offers what `RolloutEngine` asks for: the loop does not know that it is not a `LocalEngine`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self, TypeVar

import torch
from torch import nn
from transformers import AutoTokenizer

from gsmrl_helpers.engine import Completion, check_request
from gsmrl_helpers.sampling import SamplingParams
from gsmrl_helpers.server_process import ServerError, ServerStartError
from gsmrl_helpers.tokenization import encode
from gsmrl_helpers.vllm_client import ServerDiedError, ServerResponseError
from gsmrl_helpers.vllm_config import VLLMConfig
from gsmrl_helpers.vllm_draws import TokenIds, draw_all
from gsmrl_helpers.vllm_process import RunningServer, start_vllm
from gsmrl_helpers.weight_sync import (
    PROBE,
    ArrivalCheck,
    NcclTransfer,
    ReloadTransfer,
    WeightSyncError,
    WeightTransfer,
)

Result = TypeVar("Result")


class ServerRestartedWarning(UserWarning):
    """A server that ended without being told to is started again."""


class VLLMServer:
    """Samples on a vLLM server that it starts, gives weights to, and ends.

    A completion's random numbers follow from the seed of the sampling parameters, the prompt and
    the number of the draw. A server that dies, or does not answer in time, is started again with
    the present weights and asked again; should it die of the same call again, that is an error.

    Args:
        model: the policy's folder, or its name on the Hub; also the tokenizer's.
        config: how the server is run.
        policy_dtype: of the trainer's weights; see `VLLMConfig.dtype` for the server's.

    Raises:
        ServerStartError: there is no such policy.

    Attributes:
        restarts: how often the server was started again.
    """

    def __init__(
        self,
        model: str | Path,
        config: VLLMConfig,
        policy_dtype: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        self.model, self.config = str(model), config
        self.dtype = config.dtype_for(policy_dtype)
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(self.model)
        except (OSError, ValueError) as error:
            raise ServerStartError(
                f"no such policy: {self.model!r} is no folder with a policy and its tokenizer, and "
                f"no name on the Hub that can be loaded ({str(error).splitlines()[0]})"
            ) from error
        self.restarts = 0
        self.running: RunningServer | None = None
        self._policy: nn.Module | None = None
        self._policy_device: torch.device | None = None
        self._transfer: WeightTransfer
        self._arrival: ArrivalCheck

    def start(self) -> None:
        """Start the server and wait until it serves the policy; a running one is left alone.

        Raises:
            ServerStartError: see `start_vllm`.
        """
        if self.running is None:
            self.running = start_vllm(self.model, self.config, self.dtype)

    def stop(self) -> None:
        """End all processes of the server; a second call does nothing."""
        if self.running is not None:
            self.running.stop()
        self.running = self._policy = self._policy_device = None

    def close(self) -> None:
        """`stop`, by the name that all engines have."""
        self.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- completions ---------------------------------------------------------------------------

    def generate_completions(
        self,
        prompts: Sequence[str],
        sampling_params: SamplingParams,
        batch_size: int | None = None,
    ) -> list[Completion]:
        """Sample n completions per prompt; see `RolloutEngine.generate_completions`.

        Raises:
            ValueError: an empty prompt, one that leaves no room for max_tokens in the server's
                context, a single string in place of a list, or a batch size below 1.
            ServerResponseError: the server refused a request, or completions are missing.
            ServerError: the server was not started, or it died twice.
        """
        check_request(prompts, batch_size)
        n, encoded = sampling_params.n, [tuple(encode(self.tokenizer, p)) for p in prompts]

        def sample(server: RunningServer) -> dict[TokenIds, list[Completion]]:
            for index, prompt_ids in enumerate(encoded):
                check_length(index, len(prompt_ids), sampling_params.max_tokens, server)
            self._wake(server)
            drawn = draw_all(server.client, Counter(encoded), sampling_params, batch_size)
            if self.config.sleep:
                server.client.post("/sleep", level="1")
            return drawn

        drawn = self._surviving(sample)
        completions, seen = [], Counter()
        for prompt_index, prompt_ids in enumerate(encoded):
            group = drawn[prompt_ids][n * seen[prompt_ids] : n * (seen[prompt_ids] + 1)]
            seen[prompt_ids] += 1
            completions += [
                replace(completion, prompt_index=prompt_index, sample_index=sample_index)
                for sample_index, completion in enumerate(group)
            ]
        return completions

    # --- weights -------------------------------------------------------------------------------

    def init_weight_sync(self, policy_device: torch.device | str) -> None:
        """Connect the trainer's device with the server, once, before the first sync."""
        device = torch.device(policy_device)
        self._surviving(lambda server: self._connect(server, device))
        self._policy_device = device

    def sync_policy_weights(self, policy: nn.Module) -> None:
        """Make the server sample from the policy's present weights.

        Raises:
            WeightSyncError: the server refused the weights, or has others after it. As half of an
                update may be in it, it is ended; the next call starts another one.
            ServerError: `init_weight_sync` was not called, or the server died twice.
        """
        if self._policy_device is None:
            raise ServerError("call init_weight_sync(policy_device) before the first sync")
        self._surviving(lambda server: self._send(server, policy))
        self._policy = policy

    def _connect(self, server: RunningServer, device: torch.device) -> None:
        dtype = getattr(torch, self.dtype)
        if self.config.weight_sync == "nccl":
            self._transfer = NcclTransfer(server.client, dtype)
        else:
            self._transfer = ReloadTransfer(server.client, server.process.folder, dtype)
        self._transfer.open(device)
        self._wake(server)
        probe_ids = encode(self.tokenizer, PROBE)
        self._arrival = ArrivalCheck(server.client, probe_ids, dtype, self.model)

    def _send(self, server: RunningServer, policy: nn.Module) -> None:
        try:
            self._wake(server)
            with server.client.paused():
                self._transfer.send(policy)
                server.client.reset_prefix_cache()
            self._arrival.check(policy)
        except (ServerResponseError, WeightSyncError) as error:
            server.stop()
            raise WeightSyncError(f"the engine does not have the weights: {error}") from error

    def _wake(self, server: RunningServer) -> None:
        """Give a sleeping server its memory back; one that is awake stays as it is."""
        if self.config.sleep:
            if torch.cuda.is_initialized():  # what the trainer keeps but does not use, on one card
                torch.cuda.empty_cache()
            server.client.post("/wake_up")

    # --- deaths --------------------------------------------------------------------------------

    def _surviving(self, call: Callable[[RunningServer], Result]) -> Result:
        """`call(server)`; where the server dies under it, once more, on a new server."""
        if self.running is None:
            raise ServerError("the server is not running; call start() first")
        try:
            return self._attempt(call)
        except ServerDiedError as error:
            warnings.warn(self._bury(error), ServerRestartedWarning, stacklevel=3)
        try:
            return self._attempt(call)
        except ServerDiedError as error:
            raise ServerError(f"started again, and {self._bury(error)}") from error

    def _attempt(self, call: Callable[[RunningServer], Result]) -> Result:
        if self.running.process.stopped:
            self._restart()
        if not self.running.process.running():
            raise ServerDiedError("its process has ended")
        return call(self.running)

    def _bury(self, error: ServerDiedError) -> str:
        """End what is left of a dead server; return what there is to say of it."""
        last_lines = self.running.process.last_lines()
        self.running.stop()
        return f"the server died ({error}). Its last lines:\n{last_lines}"

    def _restart(self) -> None:
        """Another server in the place of the one that was ended, with the last sync's weights."""
        self.restarts += 1
        self.running = start_vllm(self.model, self.config, self.dtype)
        if self._policy_device is not None:
            self._connect(self.running, self._policy_device)
        if self._policy is not None:
            self._send(self.running, self._policy)


def check_length(index: int, prompt_length: int, max_tokens: int, server: RunningServer) -> None:
    """Refuse what vLLM would answer with fewer tokens than were asked for."""
    if prompt_length == 0:
        raise ValueError(f"prompt {index} is empty: there is nothing to continue")
    if prompt_length + max_tokens > server.context_length:
        raise ValueError(
            f"prompt {index} has {prompt_length} tokens and max_tokens is {max_tokens}: together "
            f"more than the server's context of {server.context_length}. Shorten the prompt, "
            "lower max_tokens or raise max_model_len."
        )
