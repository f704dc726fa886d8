"""Runs a command as long as the process that asked for it lives. A program of its own, started by
`gsmrl_helpers.server_process`; it needs nothing but the standard library.

The guard leads a process group of its own. When the process that started it is gone, even by
SIGKILL, it ends the group and with it the command's children, and removes the server's temporary
folder, in which whole policies may lie. When the command ends first, the guard prints its exit
code, also as the log's last line, and stays: while a group's leader is there, its number cannot
become another group's, so that signalling the group reaches nobody else.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

POLL_S = 0.2
GROUP_END_S = 30.0  # for a killed group to be gone: a GPU's process takes a while
FOLDER_PREFIX = "gsmrl-server-"


def main(parent: int, folder: Path, command: list[str]) -> None:
    """Run `command` with its output on standard error, and outlive it until told to end."""
    # A SIGTERM to the group is for the command. A handler, unlike SIG_IGN, is not inherited by it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno())
    reported = False
    while os.getppid() == parent:
        if not reported and child.poll() is not None:
            print(f"(ended with exit code {child.returncode})", file=sys.stderr, flush=True)
            print(child.returncode, flush=True)
            reported = True
        time.sleep(POLL_S)
    remove_after_group(folder)
    os.killpg(0, signal.SIGKILL)


def remove_after_group(folder: Path) -> None:
    """Leave a process of another group behind that removes `folder` when this group is gone.

    Nothing but a folder of ours is removed: by its name, its owner, and no link.
    """
    group = os.getpgrp()
    if (remover := os.fork()) != 0:
        os.setpgid(remover, remover)  # here, so that it has left before the group is ended
        return
    deadline = time.monotonic() + GROUP_END_S
    while group_lives(group) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    is_folder = folder.is_dir() and not folder.is_symlink()
    if is_folder and folder.name.startswith(FOLDER_PREFIX) and folder.stat().st_uid == os.getuid():
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def group_lives(group: int) -> bool:
    """Whether any process has this group's number."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's: the number has been given away
        return False
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
