"""Makes every Python process record when it passes the marks of MARKS. The start-up bench puts it on PYTHONPATH.

For each mark a process appends a line of JSON to the file that OMNI_BENCH_TRACE names. The product's code is unchanged.
"""

from __future__ import annotations

import functools
import importlib.abc
import inspect
import json
import os
import sys
import time

MARKS = {
    "omni_stage.vllm_adapter.process.template": ("start_template",),
    "omni_stage.service.server.stage_server": (),
    "omni_stage.engine.factory": ("build_stage_engine",),
    "omni_stage.engine.vllm_engine": ("VllmStageEngine._create_vllm_config", "VllmStageEngine._start"),
    "omni_stage.vllm_adapter.core.async_llm": ("AsyncEngineCore.start",),
    "vllm.v1.engine.core": ("EngineCore.__init__", "EngineCore._initialize_kv_caches"),
    "vllm.v1.worker.gpu_worker": ("Worker.load_model",),
    "vllm.v1.worker.cpu_worker": ("CPUWorker.init_device",),
}
"""Module -> its functions whose beginning and end are marks. The end of each module's import is a mark too."""

_FILE = os.environ.get("OMNI_BENCH_TRACE", "")


def mark(label: str) -> None:
    """Append a line with this process, the label, the wall-clock time and the processor time to the trace file."""
    line = json.dumps({"pid": os.getpid(), "label": label, "at": time.time(), "cpu": time.process_time()})
    with open(_FILE, "a") as file:
        file.write(line + "\n")


def timed(function, label):  # type: ignore[no-untyped-def]
    """Returns the function with a mark at its beginning and its end."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args, **kwargs):  # type: ignore[no-untyped-def]
            mark(f"{label} begins")
            try:
                return await function(*args, **kwargs)
            finally:
                mark(f"{label} ends")

        return run_async

    @functools.wraps(function)
    def run(*args, **kwargs):  # type: ignore[no-untyped-def]
        mark(f"{label} begins")
        try:
            return function(*args, **kwargs)
        finally:
            mark(f"{label} ends")

    return run


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules through the other finders, and adds marks to those in MARKS."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Returns the spec of a module in MARKS; None for all others."""
        if name not in MARKS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                self._mark(name, spec.loader)
                return spec
        return None

    def _mark(self, name, loader):  # type: ignore[no-untyped-def]
        execute = loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            execute(module)
            for path in MARKS[name]:
                owner, _, attribute = path.rpartition(".")
                holder = getattr(module, owner) if owner else module
                setattr(holder, attribute, timed(getattr(holder, attribute), path))
            mark(f"{name} imported")

        loader.exec_module = exec_module


if _FILE:
    mark("python")
    sys.meta_path.insert(0, Finder())
