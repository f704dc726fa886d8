"""vLLM on the CPU, in an interpreter of its own: it samples once for each line it reads.

As a script, `python vllm_worker.py FOLDER SETTINGS`, it needs nothing but vLLM.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

RESULT = "RESULT "


# --- in vLLM's interpreter ------------------------------------------------------------------------


def serve(folder: str, settings: dict[str, Any]) -> None:
    """Answer each line of the standard input with the seconds and the tokens of one batch."""
    from vllm import LLM, SamplingParams

    engine = LLM(folder, dtype="float32", max_model_len=settings["max_model_len"], seed=0)
    params = SamplingParams(
        n=settings["n"],
        temperature=1.0,
        max_tokens=settings["max_tokens"],
        stop=settings["stop"],
        stop_token_ids=settings["stop_token_ids"],
        include_stop_str_in_output=True,
    )
    say({"ready": True})
    for _ in sys.stdin:
        started = time.perf_counter()
        outputs = engine.generate(settings["prompts"], params, use_tqdm=False)
        seconds = time.perf_counter() - started
        tokens = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
        say({"seconds": seconds, "tokens": tokens})


def say(answer: dict[str, Any]) -> None:
    """One line, told apart from what vLLM itself prints."""
    print(RESULT + json.dumps(answer), flush=True)


# --- in ours -----------------------------------------------------------------------------------


@contextmanager
def vllm_sampler(world: Any, report: Any, quick: bool) -> Iterator[dict[str, Any]]:
    """vLLM as a contender under its name, or none, with the reason in the report."""
    from benchmarks.timing import Run
    from gsmrl_helpers.paths import ROOT

    python = Path(os.environ.get("GSMRL_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
    if quick or not python.is_file():
        reason = "a quick run starts no server" if quick else "make test-vllm makes its environment"
        report.left_out.append(f"vLLM, {world.name}: {reason}")
        yield {}
        return
    with TemporaryDirectory() as folder, started(python, Path(folder), world) as worker:

        def run() -> Run:
            with awake(worker.pid):
                worker.stdin.write("\n")
                worker.stdin.flush()
                answer = listen(worker, Path(folder))
            return Run(answer["seconds"], answer["tokens"])

        yield {"vLLM": run}


@contextmanager
def awake(pid: int) -> Iterator[None]:
    """The process and its children run meanwhile, and are stopped afterwards.

    vLLM's threads keep the cores busy while they wait: the turns of the others would be slower.
    """
    wake(pid)
    try:
        yield
    finally:
        for process in family(pid):
            process.suspend()


def wake(pid: int) -> None:
    """Let a process and its children go on."""
    for process in family(pid):
        process.resume()


def family(pid: int) -> list[Any]:
    """A process and all that come from it, as psutil knows them."""
    import psutil

    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


@contextmanager
def started(python: Path, folder: Path, world: Any) -> Iterator[subprocess.Popen[str]]:
    """The worker with the world's policy, ready to sample; ended afterwards."""
    import torch

    from gsmrl_helpers.vllm_config import VLLMConfig
    from gsmrl_helpers.vllm_process import environment

    trainer = world.trainer
    trainer.model.save_pretrained(folder)
    trainer.tokenizer.save_pretrained(folder)
    config, ends = trainer.config, trainer.model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    settings = {
        "prompts": world.prompts,
        "n": config.group_size,
        "max_tokens": config.sampling_max_tokens,
        "max_model_len": trainer.model.config.max_position_embeddings,
        "stop": list(trainer.prompt.stop),
        # Where no answer is to stop, the end is a token that the vocabulary does not have.
        "stop_token_ids": [end for end in ends if end < trainer.model.config.vocab_size],
    }
    variables = environment(str(folder), VLLMConfig(python=str(python)))
    variables |= {"OMP_NUM_THREADS": str(torch.get_num_threads()), "VLLM_LOGGING_LEVEL": "ERROR"}
    with (folder / "errors.txt").open("w") as errors:
        worker = subprocess.Popen(
            [str(python), __file__, str(folder), json.dumps(settings)],
            env={**os.environ, **variables, "PYTHONPATH": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        listen(worker, folder)
        yield worker
    finally:
        if worker.poll() is None:  # a dead one has said why
            wake(worker.pid)
        worker.stdin.close()
        try:
            worker.wait(timeout=60)
        except subprocess.TimeoutExpired:
            worker.kill()


def listen(worker: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
    """The worker's next answer.

    Raises:
        RuntimeError: it ended instead; the message has its last words.
    """
    for line in worker.stdout:
        if line.startswith(RESULT):
            return json.loads(line.removeprefix(RESULT))
    last_words = (folder / "errors.txt").read_text()[-2000:]
    raise RuntimeError(f"vLLM's process ended with {worker.wait()}:\n{last_words}")


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
