"""A server as a child process: a group of its own, a log, and an end that leaves nothing behind."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

import psutil

from gsmrl_helpers.process_guard import FOLDER_PREFIX

LOOPBACK = "127.0.0.1"
GRACE_S = 15.0  # between SIGTERM and SIGKILL
GUARD = Path(__file__).with_name("process_guard.py")


class ServerError(RuntimeError):
    """A server does not do what it was asked for."""


class ServerStartError(ServerError):
    """A server did not start; the message ends with its last lines."""


class PortTakenError(ServerStartError):
    """Something else listens on the port."""


def free_port() -> int:
    """A port of the loopback interface that nothing listens on now."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return listener.getsockname()[1]


def check_port_is_free(port: int) -> None:
    """Refuse a port that something listens on.

    Raises:
        PortTakenError: naming the port.
    """
    with socket.socket() as listener:
        # A port that a stopped server has just left is free, though the kernel still remembers it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError as error:
            raise PortTakenError(
                f"port {port} is taken ({error.strerror}); end what listens there, or give no "
                "port and a free one is taken"
            ) from error


class ServerProcess:
    """A command that runs until `stop`, or until this process ends, however it ends.

    Its group is signalled and nothing else: no pattern, no name, no process that was not started
    here. Needs a POSIX system; tested on Linux.

    Args:
        command: the program and its arguments.
        env: environment variables that it gets beside those of this process.

    Attributes:
        folder: a temporary folder that goes with the process; `server.log` in it has its output.
        group: the number of its process group.
        stopped: whether `stop` was called.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        if os.name != "posix":
            raise ValueError(f"a server needs Linux, macOS or WSL; this system is {os.name!r}")
        self._folder = tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX)
        self.folder = Path(self._folder.name)
        self._log = self.folder / "server.log"
        with self._log.open("wb") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", str(GUARD), str(os.getpid()), str(self.folder), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self.group = self._guard.pid
        self.stopped = False
        self._owner = os.getpid()
        atexit.register(self.stop)

    def running(self) -> bool:
        """Whether the command still runs: its guard says when it has ended."""
        return not self.stopped and not wait([self._guard.stdout], timeout=0)

    def last_lines(self, count: int = 15) -> str:
        """The end of what the server printed."""
        if not self._log.is_file():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-count:])

    def members(self) -> list[psutil.Process]:
        """The live processes of the group, the guard among them."""
        found = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, PermissionError, psutil.Error):
                ours = os.getpgid(process.pid) == self.group
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def stop(self) -> None:
        """End the group: SIGTERM, and SIGKILL for what is left when the command has ended or
        after `GRACE_S` seconds. Returns when all are gone; a second call does nothing."""
        if self.stopped or os.getpid() != self._owner:  # a forked child must not stop it
            return
        self.stopped = True
        atexit.unregister(self.stop)
        self._signal(signal.SIGTERM)
        wait([self._guard.stdout], timeout=GRACE_S)
        self._signal(signal.SIGKILL)
        deadline = time.monotonic() + GRACE_S
        while self.members() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._guard.wait()  # only now may the system give the group's number away
        self._guard.stdout.close()
        self._folder.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # nobody there but a zombie
            os.killpg(self.group, number)
