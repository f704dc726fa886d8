"""A stand-in for vLLM's server: the same routes, over a language model of one parameter vector.

`theta` (V,) are the logits of every next token, whatever stands before it; it lies in the policy's
`model.safetensors`. Files in the folder that FAKE_VLLM names switch faults on while they are there,
and `requests.jsonl` there gets a line for each POST. Run as `python fake_vllm.py -m … --model …`.
"""

from __future__ import annotations

import argparse
import array
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

EOS, CONTEXT = 1, 64
FOLDER = Path(os.environ["FAKE_VLLM"])


def fault(name: str) -> bool:
    return (FOLDER / name).exists()


def load_log_probs(folder: Path) -> list[float]:
    """log softmax(theta) of a safetensors file with this one tensor; quicker than the library."""
    content = (folder / "model.safetensors").read_bytes()
    theta = array.array("f", content[8 + int.from_bytes(content[:8], "little") :])
    log_total = math.log(math.fsum(map(math.exp, theta)))
    return [logit - log_total for logit in theta]


class Fake(BaseHTTPRequestHandler):
    name: str
    log_probs: list[float]

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/get_world_size":
            return self.answer({"world_size": 1})
        return self.answer({"data": [{"id": self.name, "max_model_len": CONTEXT}]})

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
        with (FOLDER / "requests.jsonl").open("a") as lines:
            lines.write(json.dumps({"path": self.path, **body}) + "\n")
        if path == "/v1/completions":
            return self.complete(body)
        if path == "/collective_rpc":
            return self.reload(body)
        if path == "/reset_prefix_cache":
            return self.answer({"success": not fault("reset_refused")})
        return self.answer({})

    def complete(self, body: dict) -> None:
        if fault("die") and body.get("seed") is not None:
            (FOLDER / "die").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if fault("engine_dead"):
            return self.answer({"error": "EngineCore encountered an issue"}, 500)
        if fault("hang"):
            time.sleep(60)
        if fault("refuse"):
            return self.answer({"error": "no such thing"}, 400)
        log_probs = self.log_probs
        if body.get("prompt_logprobs") is not None:
            known = [{str(t): {"logprob": log_probs[t]}} for t in body["prompt"]]
            return self.answer({"choices": [{"prompt_logprobs": [None, *known[1:]]}]})
        seeds = range(body["seed"], body["seed"] + body["n"])
        choices = [self.choice(i, seed, body, log_probs) for i, seed in enumerate(seeds)]
        if fault("choice_missing"):
            choices.pop()
        if fault("aborted"):
            choices[0]["finish_reason"] = "abort"
        if fault("no_log_probs"):
            choices[0]["logprobs"] = None
        return self.answer({"choices": choices[::-1]})

    def choice(self, index: int, seed: int, body: dict, log_probs: list[float]) -> dict:
        tokens, length = range(len(log_probs)), body["max_tokens"]
        if body["temperature"] == 0:
            drawn = [max(tokens, key=log_probs.__getitem__)] * length
        else:
            weights = [math.exp(log_prob) for log_prob in log_probs]
            drawn = random.Random(seed).choices(tokens, weights, k=length)
        ids = drawn[: drawn.index(EOS) + 1] if EOS in drawn else drawn
        return {
            "index": index,
            "text": " ".join(map(str, ids)),
            "token_ids": ids,
            "finish_reason": "stop" if ids[-1] == EOS else "length",
            "logprobs": {"token_logprobs": [log_probs[t] for t in ids]},
        }

    def reload(self, body: dict) -> None:
        if fault("update_fails"):
            return self.answer({"error": "Worker failed with error 'half a file'"}, 500)
        if not fault("loads_nothing"):
            Fake.log_probs = load_log_probs(Path(body["kwargs"]["weights_path"]))
        if fault("loads_other"):
            Fake.log_probs = Fake.log_probs[::-1]
        return self.answer({"results": [None]})


def main() -> None:
    parser = argparse.ArgumentParser()
    for option in ("-m", "--model", "--served-model-name", "--host"):
        parser.add_argument(option)
    parser.add_argument("--port", type=int)
    arguments = parser.parse_known_args()[0]
    print("arguments:", *sys.argv[1:], flush=True)
    if fault("slow_start"):
        time.sleep(60)
    if fault("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not Path(arguments.model).is_dir():
        sys.exit(f"ValueError: no model in {arguments.model}")
    if fault("has_children"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Fake.log_probs = load_log_probs(Path(arguments.model))
    Fake.name = "another-model" if fault("other_model") else arguments.served_model_name
    ThreadingHTTPServer((arguments.host, arguments.port), Fake).serve_forever()


if __name__ == "__main__":
    main()
