"""One run in a process of its own, which can be killed without harm to any other.

papermill changes the working directory of its process, and a run's GPUs and threads are set by
environment variables: both are a process's own. Started by `RunProcess` as
`python -m gsmrl_helpers.run_process PARENT JOB`; the last line that it prints is its outcome.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gsmrl_helpers.orphans import end_with_parent
from gsmrl_helpers.paths import ROOT, relative_to_root

SHOWN_LINES = 20  # of what a process said before it was killed


def describe_job(folder: Path, parameters: Mapping[str, Any], notebook: Path) -> str:
    """A run as JSON; paths inside the clone are relative to it, which may lie elsewhere there."""
    job = {"folder": relative_to_root(folder), "notebook": relative_to_root(notebook)}
    return json.dumps({**job, "parameters": parameters})


class RunProcess:
    """The process of one run. It ends with this process, however that ends.

    Args:
        job: the run, from `describe_job`.
        env: environment variables that it gets beside those of this process.
    """

    def __init__(self, job: str, env: Mapping[str, str]) -> None:
        self._name = json.loads(job)["folder"]
        # files, as a full pipe would stop it
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gsmrl_helpers.run_process", str(os.getpid()), job],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            env={**os.environ, **env},
            start_new_session=True,  # Ctrl-C is for the command, which ends it
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def running(self) -> bool:
        return self._process.poll() is None

    def outcome(self) -> str | None:
        """Wait for its end and return what failed; None where nothing did."""
        code = self._process.wait()
        lines = self._lines(self._out)
        if code == 0:
            return json.loads(lines[-1])
        died = f"was killed (signal {-code})" if code < 0 else f"ended with exit code {code}"
        last = "".join(f"\n{line}" for line in self._lines(self._err)[-SHOWN_LINES:])
        return f"{self._name}: its process {died}; the same command goes on{last}"

    def kill(self) -> None:
        """End it at once, and wait until it has ended."""
        self._process.kill()
        self._process.wait()

    @staticmethod
    def _lines(file: Any) -> list[str]:
        file.seek(0)
        return file.read().decode(errors="replace").splitlines()


def main(parent: int, job: str) -> None:
    """Run what `job` describes and print what failed, or null, as JSON."""
    end_with_parent(parent)
    from gsmrl_helpers.runs import run_one  # torch and papermill take seconds

    described = json.loads(job)
    folder, notebook = ROOT / described["folder"], ROOT / described["notebook"]
    print(json.dumps(run_one(folder, described["parameters"], notebook)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
