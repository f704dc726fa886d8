"""Watches the syncs of a run from within its kernel.

Jupyter executes the scripts of IPYTHONDIR/profile_default/startup when a kernel starts; the tests
put one there that calls `watch`, so that the run itself need not know that it is watched.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from gsmrl_helpers import LocalEngine, SamplingParams, load_problems, make_config
from gsmrl_helpers.records import append_row
from gsmrl_helpers.vllm_server import VLLMServer
from gsmrl_helpers.weight_sync import bits_of, policy_weights

SCRIPT = "from tests.vllm.watch_syncs import watch\nwatch({path!r})\n"


def install(ipython_dir: Path, path: Path) -> None:
    """Have every kernel that starts under this IPYTHONDIR write its syncs to `path`."""
    startup = ipython_dir / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00_watch_syncs.py").write_text(SCRIPT.format(path=str(path)))


def watch(path: str) -> None:
    """After each sync, write down the greedy answers of the server and of the trainer's weights,
    a mark of the weights, and the server's address."""
    config = make_config("pocket_vllm")
    prompt = config.prompt_object()
    prompts = [prompt.format(problem.question) for problem in load_problems(config, "curve")[:16]]
    greedy = SamplingParams(temperature=0.0, max_tokens=48, stop=prompt.stop, seed=0)
    sync = VLLMServer.sync_policy_weights

    def sync_and_ask(server: VLLMServer, policy: nn.Module) -> None:
        sync(server, policy)
        engines = {"engine": server, "trainer": LocalEngine(policy, server.tokenizer)}
        answers = {
            name: [c.token_ids for c in engine.generate_completions(prompts, greedy)]
            for name, engine in engines.items()
        }
        weights = sum(bits_of(policy_weights(policy, torch.float32), torch.float32).values())
        append_row(Path(path), {**answers, "weights": weights, "url": server.running.client.url})

    VLLMServer.sync_policy_weights = sync_and_ask
