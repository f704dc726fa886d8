"""Runs a command as long as the process that asked for it lives. A program of its own, started by
`gsmrl_helpers.server_process`; it needs nothing but the standard library.

The guard leads a process group of its own. When the process that started it is gone, even by
SIGKILL, it ends the group and with it the command's children. When the command ends first, the
guard prints its exit code and stays: while a group's leader is there, its number cannot become
another group's, so that signalling the group reaches nobody else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

POLL_S = 0.2


def main(parent: int, command: list[str]) -> None:
    """Run `command` with its output on standard error, and outlive it until told to end."""
    # A SIGTERM to the group is for the command. A handler, unlike SIG_IGN, is not inherited by it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno())
    reported = False
    while os.getppid() == parent:
        if not reported and child.poll() is not None:
            print(child.returncode, flush=True)
            reported = True
        time.sleep(POLL_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
