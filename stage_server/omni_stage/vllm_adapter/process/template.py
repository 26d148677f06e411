"""Starts the engine's process as a fork of a template that has imported everything, not as a fresh interpreter.

vLLM 0.32 spawns its engine core on CPUs (`platforms/cpu.py` sets VLLM_WORKER_MULTIPROC_METHOD) and wherever its caller
has threads. Then a second import of torch, transformers and vLLM takes half of the time that a stage needs to start. A
fork of the stage server itself would not be safe, because gRPC, uvloop and the engine's launcher run threads in it. So
the stage server imports everything first, while it has one thread, and forks a template that does nothing but fork. The
template runs Python's own fork server (`multiprocessing.forkserver`), and replaces the process that Python would start
for it (docs/adr/0017).

    start_template()                  once, when the stage server's process starts, before it uses gRPC
    with template_processes(): ...    vLLM's engine cores that are started here are forks of the template; works once

Private interfaces: `multiprocessing.forkserver._forkserver` (CPython 3.11 to 3.13), whose server is replaced, and
`vllm.v1.engine.utils.get_mp_context` (vLLM 0.32), which alone chooses the core's start method. vLLM's environment
variable for it accepts only fork and spawn.
"""

from __future__ import annotations

import ctypes
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
from contextlib import contextmanager
from multiprocessing import context, forkserver, resource_tracker
from pathlib import Path
from typing import Any

import setproctitle

from omni_stage.vllm_adapter.process.env import BIND_TO_PARENT, die_with_parent

_log = logging.getLogger(__name__)

_PRELOADED = (
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "omni_stage.engine.vllm_engine",
)
"""Modules that both the stage server and its engine import."""
_GPU_WORKERS = ("omni_stage.vllm_adapter.gpu_workers",)
_CPU_WORKERS = ("omni_stage.vllm_adapter.cpu_workers",)
"""These break CUDA in the process that imports them."""
_PYTHONS = ((3, 11), (3, 13))
"""First and last version of CPython whose fork server this module was written for."""

_template: int | None = None
"""Process id of the template. Set in the template, in its forks, and in its parent until the template was used."""


def start_template() -> bool:
    """Import what stage server and engine share, then fork the template. Returns whether it forked, or logs why not.

    Call it on the main thread, before anything starts a thread. Without a template, engines are spawned, which is
    slower.
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
        # The template lives on as the parent of its forks, but gets no further requests.
        server: Any = forkserver._forkserver
        shutil.rmtree(Path(server._forkserver_address).parent, ignore_errors=True)
        _template = None


class _TemplateContext:
    """The part of a multiprocessing context that `CoreEngineProcManager` uses."""

    @staticmethod
    def Process(*, target: Callable[..., Any], name: str, kwargs: Mapping[str, Any]) -> context.ForkServerProcess:
        """Returns a process, not started yet, that will run `target` in the current environment."""
        work = {"environment": dict(os.environ), "target": target, "kwargs": dict(kwargs)}
        return context.ForkServerProcess(target=_run_forked, name=name, kwargs=work)


def _run_forked(environment: Mapping[str, str], target: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Set up in the fork what a spawned engine would have inherited, then run the engine."""
    if _template is None:
        raise RuntimeError("the engine's template was replaced by a process that is not ours")
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)
    if BIND_TO_PARENT in environment:
        os.setsid()
        die_with_parent(_template)
        # This process is bound. With its own id here, bind_to_parent skips it, but binds the processes that it spawns.
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
        return "this version of Python may have a different fork server"
    if torch.cuda.is_initialized() or cuda_is_in_use():
        return "CUDA is in use, and does not survive a fork"
    if threading.active_count() > 1:
        return f"threads run already: {', '.join(sorted(thread.name for thread in threading.enumerate()))}"
    native = len(list(Path("/proc/self/task").iterdir()))
    if native > 1:
        return f"{native - 1} native threads run already"
    return ""


def cuda_is_in_use(driver: str = "libcuda.so.1") -> bool:
    """Returns whether any library has initialized CUDA's driver in this process.

    torch knows only of its own calls; and open device files prove nothing, because NVML, which survives a fork, has
    some too. `driver`: file name of the driver's library.
    """
    try:
        # Finds the library only if this process has loaded it already.
        library = ctypes.CDLL(driver, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return int(library.cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p()))) != _NOT_INITIALIZED


_NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED, which every function of the driver returns until cuInit was called."""


def _fork_template() -> None:
    global _template
    server: Any = forkserver._forkserver
    listener = socket.socket(socket.AF_UNIX)
    # In a private directory: any process that can connect can make the template run code.
    address = str(Path(tempfile.mkdtemp(prefix="omnipipeline-")) / "template")
    listener.bind(address)
    listener.listen()
    # Start the resource tracker here, so that the template's forks share this process's tracker.
    resource_tracker.ensure_running()
    alive_r, alive_w = os.pipe()
    # What was imported stays forever. Neither process's garbage collector may visit it: that would copy its pages.
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
    """Run the template, which forks on request and ends with its parent. Does not return."""
    global _template
    status = 1
    try:
        os.close(alive_w)
        # A terminal or a supervisor signals whole process groups. Only the stage server reacts to such a signal.
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent(parent)
        _template = os.getpid()
        # This also lets vLLM set the titles of the forks: setproctitle finds a title's memory only while the
        # environment is as it was at the start.
        setproctitle.setproctitle("omnipipeline: engine template")
        forkserver.main(listener.detach(), alive_r, preload=[])
    except SystemExit:
        status = 0
    except BaseException:
        _log.exception("the engine's template failed")
        raise
    finally:
        os._exit(status)
