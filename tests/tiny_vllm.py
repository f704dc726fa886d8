"""The policy of `fake_vllm.py`, and an interpreter that runs it in vLLM's place."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from gsmrl_helpers.vllm_config import VLLMConfig
from gsmrl_helpers.vllm_server import VLLMServer
from tests.tiny_policy import LETTERS, make_tokenizer

FAKE = Path(__file__).with_name("fake_vllm.py")


class Unigram(nn.Module):
    """Every next token has the same distribution, softmax(theta)."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.theta = nn.Parameter(torch.randn(len(LETTERS) + 4, generator=generator))

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.theta.expand(*input_ids.shape, -1))

    def log_probs(self) -> Tensor:
        return self.theta.detach().log_softmax(0)


class FakeVLLM:
    """A policy's folder and an interpreter for `VLLMServer`; faults and requests of the server."""

    def __init__(self, folder: Path) -> None:
        self.model, self.folder = folder / "policy", folder / "fake"
        self.model.mkdir()
        self.folder.mkdir()
        make_tokenizer().save_pretrained(self.model)
        save_file({"theta": Unigram().theta.data}, self.model / "model.safetensors")
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
        self.python.chmod(0o755)
        os.environ["FAKE_VLLM"] = str(self.folder)

    def config(self, **settings: object) -> VLLMConfig:
        return VLLMConfig(python=str(self.python), **{"start_timeout": 60.0, **settings})

    def server(self, **settings: object) -> VLLMServer:
        return VLLMServer(self.model, self.config(**settings))

    def switch(self, fault: str, on: bool = True) -> None:
        if on:
            (self.folder / fault).touch()
        else:
            (self.folder / fault).unlink()

    def requests(self) -> list[dict]:
        """The POSTs so far, in order; the next call starts anew."""
        path = self.folder / "requests.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]
