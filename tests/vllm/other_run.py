"""A run in a process of its own, as a user starts it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import psutil

from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.runs import run_folder
from tests.vllm.watch_syncs import install


class Run:
    """`gsmrl run` as a process, which carries a mark that its descendants inherit."""

    def __init__(self, runs_dir: Path, **settings: object) -> None:
        self.folder = run_folder("on-policy", "pocket_vllm", "standard", 0, runs_dir)
        self.mark = secrets.token_hex(8)
        self.syncs = runs_dir / "syncs.jsonl"
        install(runs_dir / "ipython", self.syncs)
        command = [sys.executable, "-m", "gsmrl_helpers.cli", "run", "on-policy"]
        command += ["--seeds", "0"]
        command += ["--profile", "pocket_vllm", "--runs-dir", str(runs_dir)]
        for name, value in settings.items():
            command += ["--set", f"{name}={json.dumps(value)}"]
        self.output = runs_dir / "output.txt"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={
                    **os.environ,
                    "GSMRL_TEST_MARK": self.mark,
                    "IPYTHONDIR": str(runs_dir / "ipython"),
                    "PYTHONPATH": str(ROOT),
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def descendants(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("GSMRL_TEST_MARK") == self.mark:
                    found.append(process)
            except psutil.Error:
                pass
        return found
