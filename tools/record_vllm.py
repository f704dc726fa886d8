"""Record what chapter 07 shows of a real vLLM server: `.venv/bin/python tools/record_vllm.py`.

One server, on the CPU, with the pocket policy in float32 and cache blocks of 32 tokens. Writes
data/results/pocket_vllm/rollouts.json and, beside it, the manifest of what made it.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gsmrl_helpers.config import RunConfig, make_config
from gsmrl_helpers.engine import Completion, LocalEngine, evaluation_mode
from gsmrl_helpers.log_probs import get_response_log_probs
from gsmrl_helpers.paths import RESULTS_DIR, relative_to_root
from gsmrl_helpers.records import make_manifest, policy_sha256, write_json
from gsmrl_helpers.sampling import SamplingParams, derive_seed
from gsmrl_helpers.tokenization import encode, tokenize_prompt_and_output
from gsmrl_helpers.vllm_server import VLLMServer
from gsmrl_helpers.world import load_policy, load_problems, policy_location

PATH = RESULTS_DIR / "pocket_vllm" / "rollouts.json"
PROBLEMS, GROUP, MAX_TOKENS = 32, 8, 48
QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)

Json = dict[str, Any]


def trainer_log_probs(
    model: nn.Module, tokenizer: Any, prompts: list[str], completions: list[Completion]
) -> Tensor:
    """(N,) the trainer's log-probabilities of all completions' tokens, one after the other."""
    batch = tokenize_prompt_and_output(
        prompts,
        [c.text for c in completions],
        tokenizer,
        output_token_ids=[c.token_ids for c in completions],
    )
    with torch.no_grad(), evaluation_mode(model):
        scored = get_response_log_probs(model, batch["input_ids"], batch["labels"])["log_probs"]
    return scored[batch["response_mask"]].double()


def compare(
    model: nn.Module, tokenizer: Any, prompts: list[str], completions: list[Completion]
) -> Json:
    """How far the engine's log-probabilities of its tokens are from the trainer's, in nats."""
    ours = trainer_log_probs(model, tokenizer, prompts, completions)
    theirs = torch.tensor([p for c in completions for p in c.log_probs], dtype=torch.float64)
    gap = (ours - theirs).abs().numpy()
    return {
        "tokens": len(gap),
        "mean": float(gap.mean()),
        "quantiles": {str(q): float(np.quantile(gap, q)) for q in QUANTILES},
    }


def another_policy(model: nn.Module, noise: float = 0.3) -> nn.Module:
    """The policy with noise on every matrix, a share of its own spread."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.ndim > 1:
                spread = noise * parameter.std()
                parameter.add_(spread * torch.randn(parameter.shape, generator=generator))
    return other


@contextmanager
def no_cache_reset(server: VLLMServer) -> Iterator[None]:
    """The fault of a sync that forgets the cache."""
    client = server.running.client
    client.reset_prefix_cache = lambda: None
    try:
        yield
    finally:
        del client.reset_prefix_cache


def record_one_seed(server: VLLMServer, prompt: str, params: SamplingParams) -> Json:
    """Eight requests with one seed and n = 1, against one request with n = 8."""
    ids, seed = encode(server.tokenizer, prompt), derive_seed(0, "one seed") // 2
    client = server.running.client
    one_by_one = [client.complete(ids, 1, seed, params)[0] for _ in range(GROUP)]
    together = client.complete(ids, GROUP, seed, params)
    return {
        "prompt": prompt,
        **{
            name: {
                "distinct": len({tuple(c.token_ids) for c in completions}),
                "texts": [c.text for c in completions],
            }
            for name, completions in (("requests_n1", one_by_one), ("request_n8", together))
        },
    }


def record_sync(
    server: VLLMServer, model: nn.Module, prompts: list[str], greedy: SamplingParams
) -> Json:
    """Greedy answers of trainer and engine, before the engine has the weights and after it."""
    local = LocalEngine(model, server.tokenizer).generate_completions(prompts, greedy)

    def against_the_trainer() -> Json:
        answers = server.generate_completions(prompts, greedy)
        pairs = zip(answers, local, strict=True)
        return {
            "prompts": len(prompts),
            "greedy_equal": sum(ours.token_ids == theirs.token_ids for ours, theirs in pairs),
            "log_prob_difference": compare(model, server.tokenizer, prompts, answers),
        }

    before = against_the_trainer()
    server.sync_policy_weights(model)
    return {"before": before, "after": against_the_trainer()}


def record_prefix_cache(
    server: VLLMServer, old: nn.Module, new: nn.Module, prompts: list[str], greedy: SamplingParams
) -> Json:
    """The same prompts under old weights, then under new ones: without a reset, then with it."""

    def ask() -> Json:
        return compare(new, server.tokenizer, prompts, server.generate_completions(prompts, greedy))

    server.sync_policy_weights(old)
    server.generate_completions(prompts, greedy)  # the cache now has the old weights' keys
    with no_cache_reset(server):
        server.sync_policy_weights(new)
        without_reset = ask()
    server.sync_policy_weights(new)
    lengths = [len(encode(server.tokenizer, prompt)) for prompt in prompts]
    return {
        "prompt_tokens": [min(lengths), max(lengths)],
        "without_reset": without_reset,
        "with_reset": ask(),
    }


def make_recording(config: RunConfig) -> tuple[Json, str]:
    """All parts, from one server, and what it says that it is."""
    model, tokenizer = load_policy(config)
    other, prompt = another_policy(model), config.prompt_object()
    prompts = [prompt.format(p.question) for p in load_problems(config, "dev")[:PROBLEMS]]
    params = SamplingParams(n=1, max_tokens=MAX_TOKENS, stop=prompt.stop, seed=0)
    greedy, group = (
        params.model_copy(update=change) for change in ({"temperature": 0.0}, {"n": GROUP})
    )
    with VLLMServer(policy_location(config), config.vllm, config.dtype) as server:
        version = server.running.client.get("/version")["version"]
        server.init_weight_sync("cpu")
        one_seed = record_one_seed(server, prompts[0], params)
        sync = record_sync(server, other, prompts, greedy)
        cache = record_prefix_cache(server, model, other, prompts, greedy)
        server.sync_policy_weights(model)
        rollouts = server.generate_completions(prompts, group)
    repeated = [prompt for prompt in prompts for _ in range(GROUP)]
    batch = {
        "completions": len(rollouts),
        "finish_reasons": dict(Counter(c.finish_reason for c in rollouts)),
        "log_prob_difference": compare(model, tokenizer, repeated, rollouts),
    }
    recording = {"one_seed": one_seed, "sync": sync, "prefix_cache": cache, "batch": batch}
    return recording, f"vLLM {version}"


def main(python: str) -> None:
    """Make the recording with the vLLM of this interpreter, and write it with its manifest."""
    started = time.monotonic()
    config = make_config("pocket_vllm")
    settings = {"python": python, "extra_args": ("--block-size", "32")}
    vllm = config.vllm.model_copy(update=settings)
    config = config.model_copy(update={"vllm": vllm})
    sha = policy_sha256(policy_location(config))
    manifest = make_manifest(config, sha, "python tools/record_vllm.py")
    recording, version = make_recording(config)
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(json.dumps(recording, indent=1) + "\n")
    seconds = round(time.monotonic() - started, 1)
    manifest |= {"status": "finished", "wall_seconds": seconds, "server": version}
    write_json(PATH.with_suffix(".manifest.json"), manifest)
    print(relative_to_root(PATH))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".venv-vllm/bin/python")
