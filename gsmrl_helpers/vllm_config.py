"""The settings of a vLLM server."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

NOT_EXTRA = {
    "--model": "the setting policy",
    "--dtype": "the setting vllm.dtype",
    "--port": "the setting port",
    "--max-model-len": "the setting max_model_len",
    "--gpu-memory-utilization": "the setting gpu_memory_utilization",
    "--enable-sleep-mode": "the setting sleep",
    "--weight-transfer-config": "the setting weight_sync",
    "--seed": "nothing: each request has a seed of its own",
    "--host": "nothing: the server listens on the loopback interface only",
    "--uds": "nothing: the server listens on the loopback interface only",
    "--served-model-name": "nothing: by a name that is drawn the trainer knows its server",
    "--generation-config": "the sampling settings of the run",
    "--override-generation-config": "the sampling settings of the run",
    "--logprobs-mode": "nothing: the trainer needs log-probabilities",
    "--api-key": "nothing: the trainer sends none",
    "--config": "extra_args, one by one: a file could set what is refused here",
}


class VLLMConfig(BaseModel):
    """How a vLLM server is run.

    Attributes:
        python: The interpreter that has vLLM: a path (from the clone's folder, if relative) or a
            program on the PATH. vLLM asks for an environment of its own.
        device: "cpu", or the server's GPU, such as "cuda:1".
        dtype: Of its weights, keys and values, and computations; "auto" is the policy's.
        port: To listen on, on the loopback interface; None takes a free one.
        gpu_memory_utilization: Share of the GPU's memory for weights and the KV cache.
        sleep: After sampling the server gives its GPU memory back, weights go to the host's; where
            it shares the trainer's GPU.
        cpu_kv_cache_gib: GiB for the KV cache where the device is a CPU.
        max_model_len: Longest prompt and completion together; None is the model's context.
        weight_sync: "nccl" from GPU to GPU, "reload" through a file that the server loads.
        extra_args: More arguments of ``vllm.entrypoints.openai.api_server``, but none of
            `NOT_EXTRA`, which says how those are set.
        start_timeout: Seconds until it must answer.
        request_timeout: Seconds that one request, or one update of the weights, may take.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    python: str
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda:\d+)$")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    port: int | None = Field(default=None, ge=1, le=65535)
    gpu_memory_utilization: float = Field(default=0.85, gt=0, le=1)
    sleep: bool = False
    cpu_kv_cache_gib: int = Field(default=1, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)
    weight_sync: Literal["nccl", "reload"] = "reload"
    extra_args: tuple[str, ...] = ()
    start_timeout: float = Field(default=600.0, gt=0)
    request_timeout: float = Field(default=600.0, gt=0)

    def dtype_for(self, policy_dtype: str) -> str:
        """The server's dtype, beside a policy of this one."""
        return policy_dtype if self.dtype == "auto" else self.dtype

    @field_validator("extra_args")
    @classmethod
    def _leave_ours_alone(cls, extra_args: tuple[str, ...]) -> tuple[str, ...]:
        """They come last on the command line, where they would undo what is said before."""
        for argument in extra_args:
            # Both --host=x and --host; vLLM reads _ as -, and takes the beginning of a name for it.
            name = re.split(r"[=\s]", argument, maxsplit=1)[0].replace("_", "-")
            for ours, instead in NOT_EXTRA.items():
                if name.startswith("--") and ours.startswith(name):
                    raise ValueError(
                        f"extra_args may not have {argument!r}: {ours} is set by {instead}. Any "
                        "argument of vLLM is allowed but " + ", ".join(NOT_EXTRA)
                    )
        return extra_args
