"""Engine processes end with the stage server and do not get its signals.

vLLM 0.32's engine core does not notice its parent's death, and aborts its requests on the first SIGTERM or SIGINT,
which a terminal or a supervisor sends to the whole process group. Cores that are forked (template.py) are bound before
they run anything. Where vLLM spawns a process there is no hook before its target runs: `bind_to_parent` is called by
our vLLM plugin, which every engine process loads first (`v1/engine/core.py`, `v1/worker/worker_base.py`).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

from omni_stage.vllm_adapter.process.env import BIND_TO_PARENT

_PR_SET_PDEATHSIG = 1


def bind_to_parent() -> bool:
    """Start a session of an engine process, and let the kernel kill it (SIGKILL) with the thread that started it.

    Returns whether this process is an engine process and was bound; does nothing elsewhere or in a second call.
    The kernel watches the parent's *thread*, so an engine must be started on a thread that lives as long
    (`core/async_llm.py`).
    """
    parent = multiprocessing.parent_process()
    server = os.environ.get(BIND_TO_PARENT, "")
    if parent is None or not sys.platform.startswith("linux") or not server.isdigit() or int(server) == os.getpid():
        return False
    if os.getpgrp() != os.getpid():
        os.setsid()
    die_with_parent(parent.pid or 0)
    return True


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process (SIGKILL) when the thread of `parent` that started it ends. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        # It ended between the start of this process and the call above.
        os.kill(os.getpid(), signal.SIGKILL)
