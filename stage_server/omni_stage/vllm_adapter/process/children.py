"""Engine processes end with the stage server and do not get its signals.

vLLM 0.32's engine core does not notice its parent's death. It aborts its requests on the first SIGTERM or SIGINT, which
a terminal or a supervisor sends to the whole process group. Cores that are forked (template.py) are bound to their
parent before they run anything. Where vLLM spawns a process, there is no hook before its target runs. There our vLLM
plugin calls `bind_to_parent`; every engine process loads plugins first (`v1/engine/core.py`,
`v1/worker/worker_base.py`).
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
    """Put this engine process into its own session; have the kernel kill it (SIGKILL) when its parent's thread ends.

    Returns True in an engine process. In other processes, does nothing and returns False. The kernel watches the
    *thread* that started the process, so that thread must live as long as the engine (`core/async_llm.py`).
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
        # The parent ended between the start of this process and the call above.
        os.kill(os.getpid(), signal.SIGKILL)
