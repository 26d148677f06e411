"""The engine's process as a fork of a template that has imported everything, in place of a fresh interpreter.

vLLM 0.32 spawns its engine core on CPUs (`platforms/cpu.py` sets VLLM_WORKER_MULTIPROC_METHOD) and wherever its caller
has threads: half of a stage's start is importing torch, transformers and vLLM a second time. A fork of the stage server
itself would not be safe, since gRPC, uvloop and the engine's launcher run threads in it. So the stage server imports
all of it first, while it is one thread, and forks a template that does nothing but fork: Python's own fork server
(`multiprocessing.forkserver`), with our process in place of the one that it would start (docs/adr/0017).

    start_template()                  once, at entry, before gRPC
    with template_processes(): ...    vLLM's engine cores, started meanwhile, are forks of the template; once

Private interfaces: `multiprocessing.forkserver._forkserver` (CPython 3.11 to 3.13), whose server is replaced, and
`vllm.v1.engine.utils.get_mp_context` (vLLM 0.32), the one place where the core's start method is chosen, for its
environment variable takes no third value.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import context, forkserver, resource_tracker
from pathlib import Path
from typing import Any

import setproctitle

from omni_stage.vllm_adapter.process.children import die_with_parent
from omni_stage.vllm_adapter.process.env import BIND_TO_PARENT

_log = logging.getLogger(__name__)

_PRELOADED = (
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "omni_stage.engine.vllm_engine",
)
"""Modules that both the stage server and its engine import."""
_GPU_WORKERS = ("omni_stage.vllm_adapter.ar.worker", "omni_stage.vllm_adapter.diffusion.worker")
_CPU_WORKERS = ("omni_stage.vllm_adapter.cpu_workers",)
"""These break CUDA in the process that imports them."""
_PYTHONS = ((3, 11), (3, 13))
"""The versions of CPython, first and last, whose fork server was read."""

_template: int | None = None
"""Process id of the template, in it, in all that it forked, and in its parent until it was used; else None."""


def start_template() -> bool:
    """Import what stage server and engine share, then fork the template. Returns whether it did; else logs why not.

    Call on the main thread, before anything starts a thread. Without a template engines are spawned, which is slower.
    """
    import_shared()
    hindrance = _find_hindrance()
    if hindrance:
        _log.info("engines are spawned, not forked: %s", hindrance)
        return False
    _fork_template()
    return True


@contextmanager
def template_processes() -> Iterator[None]:
    """Let vLLM start engine cores within this context as forks of the template, if there is an unused one."""
    global _template
    if _template is None:
        yield
        return
    from vllm.v1.engine import utils

    original = utils.get_mp_context
    utils.get_mp_context = _TemplateContext
    try:
        yield
    finally:
        utils.get_mp_context = original
        # It lives on as the parent of what it forked, but is asked no more.
        server: Any = forkserver._forkserver
        shutil.rmtree(Path(server._forkserver_address).parent, ignore_errors=True)
        _template = None


class _TemplateContext:
    """What `CoreEngineProcManager` uses of a multiprocessing context."""

    @staticmethod
    def Process(*, target: Callable[..., Any], name: str, kwargs: Mapping[str, Any]) -> context.ForkServerProcess:
        """Returns a process, not started yet, that will run `target` in the current environment."""
        work = {"environment": dict(os.environ), "target": target, "kwargs": dict(kwargs)}
        return context.ForkServerProcess(target=_run_forked, name=name, kwargs=work)


def _run_forked(environment: Mapping[str, str], target: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """In the fork: what a spawned engine would have inherited, then the engine."""
    if _template is None:
        raise RuntimeError("the engine's template was replaced by a process that is not ours")
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)
    if BIND_TO_PARENT in environment:
        os.setsid()
        die_with_parent(_template)
        # Nothing is left to bind here; processes that it spawns see another's id.
        os.environ[BIND_TO_PARENT] = str(os.getpid())
    target(**kwargs)


def import_shared() -> None:
    """Import what stage server and engine share of vLLM. Starts no thread."""
    for name in _PRELOADED:
        importlib.import_module(name)
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    workers = _CPU_WORKERS if current_platform.is_cpu() else _GPU_WORKERS if current_platform.is_cuda() else ()
    for name in workers:
        importlib.import_module(name)


def _find_hindrance() -> str:
    """Returns why this process must not be forked; empty if it may."""
    import torch

    first, last = _PYTHONS
    if not sys.platform.startswith("linux"):
        return "only Linux ends a fork with its parent"
    if not first <= sys.version_info[:2] <= last:
        return "the fork server of this Python is unknown"
    if torch.cuda.is_initialized() or _holds_open("/dev/nvidia-uvm"):
        return "CUDA is in use, and does not survive a fork"
    if threading.active_count() > 1:
        return f"threads run already: {', '.join(sorted(thread.name for thread in threading.enumerate()))}"
    native = len(list(Path("/proc/self/task").iterdir()))
    if native > 1:
        return f"{native - 1} native threads run already"
    return ""


def _holds_open(device: str, descriptors: Path = Path("/proc/self/fd")) -> bool:
    """Returns whether this process has a device file open: a library's call of cuInit opens it without torch's
    knowledge."""
    for descriptor in descriptors.iterdir():
        # The descriptor that listed the directory is closed by now.
        with suppress(FileNotFoundError):
            if descriptor.readlink() == Path(device):
                return True
    return False


def _fork_template() -> None:
    global _template
    server: Any = forkserver._forkserver
    listener = socket.socket(socket.AF_UNIX)
    # In a private directory: any process that can connect can make the template run code.
    address = str(Path(tempfile.mkdtemp(prefix="omnipipeline-")) / "template")
    listener.bind(address)
    listener.listen()
    # Started here, or the first process that the template forks would have none to share.
    resource_tracker.ensure_running()
    alive_r, alive_w = os.pipe()
    # What was imported stays: neither side's collector may go through it, and so copy its pages.
    gc.freeze()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run_template(parent, listener, alive_r, alive_w)
    os.close(alive_r)
    listener.close()
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, alive_w, pid
    _template = pid


def _run_template(parent: int, listener: socket.socket, alive_r: int, alive_w: int) -> None:
    """The template's life: it forks when asked, and ends with its parent. Does not return."""
    global _template
    status = 1
    try:
        os.close(alive_w)
        # Signals of a terminal or a supervisor reach whole groups; the stage server alone answers them.
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent(parent)
        _template = os.getpid()
        # Also for the forks, which vLLM names: the title is found only while the environment is as it was at the start.
        setproctitle.setproctitle("omnipipeline: engine template")
        forkserver.main(listener.detach(), alive_r, preload=[])
    except SystemExit:
        status = 0
    except BaseException:
        _log.exception("the engine's template failed")
        raise
    finally:
        os._exit(status)
