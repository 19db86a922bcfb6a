"""`python -m agent_env.deploy.leash COMMAND...`: runs a command that ends, in order, when whoever started it is gone.

The starter keeps our stdin open and says nothing. Its end, however it comes, closes the pipe: the command then gets
SIGTERM, with which our servers remove their sandboxes. On Linux our own end, however it comes, does the same. Standard
library only. The exit code is the command's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def run(command: Sequence[str]) -> int:
    # The kernel's signal comes at the end of the thread that started the command, so that is the main one.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.terminate())
    threading.Thread(target=_wait_for_the_end_of_stdin, args=(child,), daemon=True).start()
    return child.wait()


def _wait_for_the_end_of_stdin(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):  # by the descriptor: no lock is held when the interpreter ends
        pass
    child.terminate()


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    code = run(sys.argv[1:])
    sys.exit(code if code >= 0 else 128 - code)
