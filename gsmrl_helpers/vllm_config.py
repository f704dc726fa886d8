"""The settings of a vLLM server."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class VLLMConfig(BaseModel):
    """How a vLLM server is run.

    Attributes:
        python: The interpreter that has vLLM: a path (from the clone's folder, if relative) or a
            program on the PATH. vLLM asks for an environment of its own.
        device: "cpu", or the server's GPU, such as "cuda:1".
        port: To listen on, on the loopback interface; None takes a free one.
        gpu_memory_utilization: Share of the GPU's memory for weights and the KV cache.
        sleep: After sampling the server gives its GPU memory back, weights go to the host's; where
            it shares the trainer's GPU.
        cpu_kv_cache_gib: GiB for the KV cache where the device is a CPU.
        max_model_len: Longest prompt and completion together; None is the model's context.
        weight_sync: "nccl" from GPU to GPU, "reload" through a file that the server loads.
        extra_args: More arguments of ``vllm.entrypoints.openai.api_server``.
        start_timeout: Seconds until it must answer.
        request_timeout: Seconds that one request, or one update of the weights, may take.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    python: str
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda:\d+)$")
    port: int | None = Field(default=None, ge=1, le=65535)
    gpu_memory_utilization: float = Field(default=0.85, gt=0, le=1)
    sleep: bool = False
    cpu_kv_cache_gib: int = Field(default=1, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)
    weight_sync: Literal["nccl", "reload"] = "reload"
    extra_args: tuple[str, ...] = ()
    start_timeout: float = Field(default=600.0, gt=0)
    request_timeout: float = Field(default=600.0, gt=0)
