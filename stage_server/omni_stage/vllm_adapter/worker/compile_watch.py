"""Counts kernels that are compiled while a stage serves: each one makes every request of the engine wait.

vLLM's own monitor logs such a compilation, but only the first of a kernel, also during our warm-up, and never in eager
mode. Here it is silent until the stage is ready, and every event counts.

Private interfaces of vLLM 0.32 used here, and why:
- `vllm.utils.jit_monitor.activate`: installs hooks in Triton, CuTeDSL and TileLang.
- `jit_monitor._handle_jit_event`: what these hooks call for every compilation.
"""

from __future__ import annotations

import logging
from typing import Any

from vllm.utils import jit_monitor

logger = logging.getLogger(__name__)


class CompileWatch:
    """The count of this process. Compilers and vLLM's monitor are per process too."""

    def __init__(self) -> None:
        self.compiled = 0
        """Number of kernels compiled since `begin`."""
        self._begun = False
        self._report: Any = None

    def install(self) -> None:
        """Take vLLM's events. Idempotent."""
        if self._report is None:
            self._report = jit_monitor._handle_jit_event
            jit_monitor._handle_jit_event = self._note

    def begin(self) -> None:
        """Count from now on. Idempotent."""
        self.install()
        jit_monitor.activate()
        self._begun = True

    def _note(self, *, backend: str, event: str, fn_name: str, detail: str | None = None) -> None:
        if not self._begun:
            logger.debug("%s %s before the stage is ready: %s", backend, event, fn_name)
            return
        self.compiled += 1
        self._report(backend=backend, event=event, fn_name=fn_name, detail=detail)


WATCH = CompileWatch()


class WatchesCompilation:
    """Mixin of every worker. The engine calls its method through `collective_rpc`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        WATCH.install()

    def kernels_compiled(self) -> int:
        """Returns the number of kernels that this process compiled since the first call."""
        WATCH.begin()
        return WATCH.compiled
