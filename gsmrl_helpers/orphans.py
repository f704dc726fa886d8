"""No orphans: a process that writes into a run's folder ends when the one that started it is gone.

Otherwise the run of a killed command would go on unseen, and keep its folder from the next command.
Needs nothing but the standard library, so that it can be called before anything else is imported.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from threading import Thread

PR_SET_PDEATHSIG = 1  # prctl(2)
POLL_S = 0.2


def end_with_parent(parent: int) -> None:
    """Have this process killed as soon as the one that started it has ended, even by SIGKILL.

    On Linux the kernel does it; elsewhere a thread looks every `POLL_S` seconds.

    Args:
        parent: number of the process that started this one, from its own `os.getpid()`.
    """
    if sys.platform == "linux":
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
        if os.getppid() != parent:  # it ended before it was asked for
            os._exit(1)
    else:
        Thread(target=_outlive_nobody, args=(parent,), daemon=True).start()


def _outlive_nobody(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os._exit(1)
