"""Starting vLLM: its command line, and the wait until the server that answers is ours.

The server listens on the loopback interface only. Its development mode, which the weights need,
lets whoever has an account on the machine change them: do not share the machine with strangers.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.server_process import (
    LOOPBACK,
    ServerProcess,
    ServerStartError,
    check_port_is_free,
    free_port,
)
from gsmrl_helpers.vllm_client import ServerDiedError, ServerResponseError, VLLMClient
from gsmrl_helpers.vllm_config import VLLMConfig

MODULE = "vllm.entrypoints.openai.api_server"
POLL_S = 0.2


@dataclass(frozen=True)
class RunningServer:
    """A server that answers: its process, a client, and the longest text that it takes."""

    process: ServerProcess
    client: VLLMClient
    context_length: int

    def stop(self) -> None:
        """End all its processes; a second call does nothing."""
        self.client.close()
        self.process.stop()


def start_vllm(model: str, config: VLLMConfig, dtype: str) -> RunningServer:
    """Start a vLLM server and wait until it serves the policy.

    Args:
        model: the policy's folder, or its name on the Hub.
        config: how to run the server.
        dtype: of its weights: "float32", "bfloat16" or "float16".

    Raises:
        ServerStartError: no such interpreter or policy, the port is taken, the server ended, or it
            did not answer in time. Nothing is left running then.
    """
    python = interpreter(config.python)
    port = config.port or free_port()
    check_port_is_free(port)
    # A name that nothing else on this machine can answer to.
    name = f"policy-{secrets.token_hex(8)}"
    command = [python, *arguments(model, config, dtype, port, name)]
    process = ServerProcess(command, environment(model, config))
    client = VLLMClient(f"http://{LOOPBACK}:{port}", name, config.request_timeout)
    try:
        context_length = wait_until_ready(process, client, config.start_timeout)
    except BaseException:
        client.close()
        process.stop()
        raise
    return RunningServer(process, client, context_length)


def interpreter(python: str) -> str:
    """The interpreter's path; a relative one starts at the clone's folder.

    Raises:
        ServerStartError: it is not there.
    """
    in_clone = ROOT / python  # an absolute path stays what it is
    found = shutil.which(python) if "/" not in python else shutil.which(in_clone)
    if found is None:
        raise ServerStartError(
            f"python={python!r} is no interpreter. Name the one of an environment with vLLM; "
            "make test-vllm builds .venv-vllm, with vLLM for CPUs"
        )
    return found


def arguments(model: str, config: VLLMConfig, dtype: str, port: int, name: str) -> list[str]:
    """What follows the interpreter on the server's command line."""
    words = ["-m", MODULE, "--model", model, "--served-model-name", name]
    words += ["--host", LOOPBACK, "--port", str(port), "--dtype", dtype, "--seed", "0"]
    # Not the sampling defaults that a policy's generation_config.json may have.
    words += ["--generation-config", "vllm"]
    if config.max_model_len is not None:
        words += ["--max-model-len", str(config.max_model_len)]
    if config.weight_sync == "nccl":
        words += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
    if config.device == "cpu":
        # vLLM 0.32 on a CPU dies of a request that has a seed and whose prompt it takes in pieces
        # ("CPU Generator does not use offset").
        words += ["--enforce-eager", "--no-enable-chunked-prefill"]
    else:
        words += ["--gpu-memory-utilization", str(config.gpu_memory_utilization)]
    if config.sleep:
        words += ["--enable-sleep-mode"]
    return words + list(config.extra_args)


def environment(model: str, config: VLLMConfig) -> dict[str, str]:
    """The server's variables, beside those of this process."""
    variables = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if Path(model).is_dir():
        variables["HF_HUB_OFFLINE"] = "1"
    if config.device == "cpu":
        # Trainer and server take turns on the same cores, so neither is bound to some of them.
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        variables["VLLM_CPU_KVCACHE_SPACE"] = str(config.cpu_kv_cache_gib)
        # Threads that wait for a busy core cost far more than a small policy's second one gains.
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    else:
        variables["CUDA_VISIBLE_DEVICES"] = visible_gpu(torch.device(config.device).index)
    return variables


def visible_gpu(index: int) -> str:
    """The GPU that this process knows as cuda:index: it may itself see some of them only."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is None:  # a PyTorch without CUDA cannot count them
        count = torch.cuda.device_count() if torch.version.cuda else index + 1
        gpus = [str(i) for i in range(count)]
    else:
        gpus = [gpu for gpu in seen.split(",") if gpu]
    if index >= len(gpus):
        raise ValueError(
            f"the server's device is cuda:{index}, but {len(gpus)} GPUs are to be seen "
            f"(CUDA_VISIBLE_DEVICES={seen}): give one of them as vllm.device, counted from cuda:0"
        )
    return gpus[index]


def wait_until_ready(process: ServerProcess, client: VLLMClient, start_timeout: float) -> int:
    """Wait until our child lives and our model's name is what answers; return its context length.

    Raises:
        ServerStartError: see `start_vllm`.
    """
    deadline = time.monotonic() + start_timeout
    while process.running():
        if time.monotonic() > deadline:
            raise ServerStartError(
                f"the server was not up after start_timeout={start_timeout:g} s. Its last lines:\n"
                f"{process.last_lines()}"
            )
        try:
            served = client.get("/v1/models", timeout=5.0).get("data", [])
        except ServerDiedError:  # it does not listen yet
            time.sleep(POLL_S)
            continue
        except ServerResponseError as error:
            served = [{"id": str(error)}]
        for model in served:
            if model["id"] == client.model:
                return model["max_model_len"]
        raise ServerStartError(
            f"{client.url} answers, but not with our model ({str(served)[:300]}): another server "
            "has taken the port meanwhile"
        )
    raise ServerStartError(
        f"the server ended while it started. Its last lines:\n{process.last_lines()}"
    )
