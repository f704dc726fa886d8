"""One train step at OLMo-2-1B's shape on this machine's GPU: time, memory, and gradients.

Random weights and rollouts, so nothing is downloaded. In at most eight minutes on one GPU of 80 GB:

    python tools/gpu_check.py --out gpu_check.json

measures, with SDPA and where it is installed with FlashAttention-2, the seconds of a step, tokens
per second, the share of the GPU's peak speed (MFU, where --peak-tflops says what that is), and peak
memory beside what the planner says; and on a small shape the gradients of bf16 beside float32.
Exit 1 where the planner is off by more than 15 %, or the gradients differ by more than 5 %.
Without a GPU it takes a tiny shape on the CPU (--tiny), counts live tensors in place of the
allocator's peak, and shows that the script runs.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from gsmrl_helpers.config import RunConfig, make_config
from gsmrl_helpers.log_probs import get_response_log_probs
from gsmrl_helpers.master_weights import make_optimizer
from gsmrl_helpers.memory import LiveBytes
from gsmrl_helpers.model_shape import KNOWN_SHAPES, ModelShape
from gsmrl_helpers.planner import Workload, step_peak
from gsmrl_helpers.random_steps import random_policy, take_random_step
from gsmrl_helpers.step_time import training_flops

TINY = ModelShape(
    architecture="olmo2",
    vocab_size=672,
    hidden_size=64,
    intermediate_size=192,
    n_layers=3,
    n_heads=4,
    n_kv_heads=4,
    head_dim=16,
    tied=False,
)
MAX_PLANNER_ERROR, MAX_GRADIENT_ERROR = 0.15, 0.05
GROUP_SIZE = 4


def measure_step(
    shape: ModelShape, config: RunConfig, attention: str, prompt_tokens: int, n_steps: int
) -> dict[str, Any]:
    """Seconds and peak bytes of a step, after one to warm up; and what the planner says."""
    on_gpu = config.device.startswith("cuda")
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    # On a GPU the allocator counts.
    with nullcontext() if on_gpu else LiveBytes() as memory:
        model = random_policy(shape, config, attention)
        optimizer = make_optimizer(config, model.parameters())
        seconds = []
        for _ in range(n_steps + 1):
            started = time.perf_counter()
            take_random_step(model, optimizer, config, prompt_tokens)
            if on_gpu:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
    measured = torch.cuda.max_memory_allocated() if on_gpu else memory.peak
    work = Workload.from_config(config, shape, prompt_tokens)
    phase, planned = step_peak(work)
    n_tokens = work.batch_rows * (work.row_tokens - 1)
    step_seconds = sorted(seconds[1:])[n_steps // 2]
    return {
        "attention": attention,
        "seconds_of_steps": [round(s, 4) for s in seconds],
        "tokens_per_second": round(n_tokens / step_seconds, 1),
        "flops_per_second": training_flops(shape, n_tokens, work.row_tokens) / step_seconds,
        "peak_gb": measured / 1e9,
        "planned_gb": planned / 1e9,
        "planned_phase": phase,
        "planner_error": planned / measured - 1,
    }


def gradient_difference(config: RunConfig, attention: str) -> float:
    """‖g − g₃₂‖ / ‖g₃₂‖ on the tiny shape: g in the run's dtype and attention, g₃₂ in float32."""
    in_float32 = config.model_copy(update={"dtype": "float32"})
    model, exact = random_policy(TINY, config, attention), random_policy(TINY, in_float32)
    exact.load_state_dict(model.state_dict())  # the same weights, rounded to the run's dtype
    ids = torch.randint(1, TINY.vocab_size, (4, 64), generator=torch.Generator().manual_seed(2))
    ids = ids.to(config.device)
    gradients = []
    for policy in (model, exact):
        get_response_log_probs(policy, ids[:, :-1], ids[:, 1:])["log_probs"].mean().backward()
        trained = [p.grad.float().flatten() for p in policy.parameters() if p.requires_grad]
        gradients.append(torch.cat(trained))
    return ((gradients[0] - gradients[1]).norm() / gradients[1].norm()).item()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a tiny shape, on the CPU")
    parser.add_argument("--profile", default="two_gpu", help="whose settings to take")
    parser.add_argument("--rows", type=int, default=32, help="responses of a step")
    parser.add_argument("--steps", type=int, default=3, help="steps to time")
    parser.add_argument("--peak-tflops", type=float, help="of this GPU in bf16, to state MFU")
    parser.add_argument("--out", type=Path, help="where to write the result as JSON")
    arguments = parser.parse_args()
    result = check(arguments)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    return 0 if result["ok"] else 1


def check(arguments: argparse.Namespace) -> dict[str, Any]:
    """All measurements, and whether they are within their bounds."""
    if not arguments.tiny and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device; --tiny runs the script on the CPU")
    profile = make_config(arguments.profile)
    rows_at_once = profile.train_batch_size // profile.gradient_accumulation_steps
    changes: dict[str, Any] = {
        "rollout_batch_size": arguments.rows,
        "train_batch_size": arguments.rows,
        "group_size": GROUP_SIZE,
        "gradient_accumulation_steps": max(1, arguments.rows // rows_at_once),
    }
    if arguments.tiny:
        changes |= {"device": "cpu", "attention": "sdpa", "sampling_max_tokens": 16}
    config = make_config(arguments.profile, overrides=changes)
    shape, prompt_tokens = (TINY, 24) if arguments.tiny else (KNOWN_SHAPES[config.policy], 256)
    has_flash = not arguments.tiny and find_spec("flash_attn") is not None
    attentions = ["sdpa", "flash_attention_2"] if has_flash else ["sdpa"]
    steps = [
        measure_step(shape, config, attention, prompt_tokens, arguments.steps)
        for attention in attentions
    ]
    for step in steps:
        step["mfu"] = (
            step["flops_per_second"] / (arguments.peak_tflops * 1e12)
            if arguments.peak_tflops
            else None
        )
    differences = {kind: gradient_difference(config, kind) for kind in attentions}
    on_gpu = config.device.startswith("cuda")
    return {
        "ok": all(abs(step["planner_error"]) <= MAX_PLANNER_ERROR for step in steps)
        and all(difference <= MAX_GRADIENT_ERROR for difference in differences.values()),
        "machine": torch.cuda.get_device_name() if on_gpu else platform.machine(),
        "torch": torch.__version__,
        "shape": shape.model_dump(),
        "settings": {name: getattr(config, name) for name in (*changes, "dtype", "optimizer")}
        | {"master_weights": config.master_weights, "prompt_tokens": prompt_tokens},
        "steps": steps,
        "gradient_difference": differences,
    }


if __name__ == "__main__":
    sys.exit(main())
