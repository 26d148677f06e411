"""The parent's side of template_worker.py."""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from typing import Any, Final

_CPU_S: Final = 1.0
_WALL_S: Final = 10.0
"""Processes share cores, so a job may need several times its CPU seconds."""
_START_S: Final = 60.0
_BYTES: Final = 256 << 20
"""Memory of a job, in addition to several copies of its input."""
_COPIES: Final = 16
TOO_COSTLY: Final = frozenset({"TemplateTooSlowError", "MemoryError", "OverflowError", "RecursionError"})
"""Names of the errors of a template that was stopped because it takes too much."""

_log = logging.getLogger(__name__)


class TemplateProcess:
    """Renders templates in one process, which starts on first use. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, template: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer of template_worker.py. `variables`: what JSON can hold."""
        given = json.dumps(variables)
        job = {"template": template, "seconds": _CPU_S, "bytes": _BYTES + _COPIES * len(given)}
        line = f'{json.dumps(job)[:-1]}, "variables": {given}}}\n'.encode()
        with self._lock:
            process, within_s = self._process, _WALL_S
            if process is None or process.poll() is not None:
                process, within_s = _spawn(), _WALL_S + _START_S
                weakref.finalize(self, _end, process)
            self._process = process
            answer = self._ask(process, line, within_s)
            if answer is None:
                _log.warning("a chat template was stopped: it took too much time or memory")
                _end(process)
                self._process = None
        return {"error": "TemplateTooSlowError", "reason": ""} if answer is None else answer

    @staticmethod
    def _ask(process: subprocess.Popen[bytes], line: bytes, within_s: float) -> dict[str, Any] | None:
        """Returns the answer to a job, or None if there is none within the time."""
        if process.stdin is None or process.stdout is None:
            return None
        ends = time.monotonic() + within_s
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            return None
        pieces: list[bytes] = []
        while not pieces or not pieces[-1].endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, ends - time.monotonic()))
            piece = os.read(process.stdout.fileno(), 1 << 20) if ready else b""
            if not piece:
                return None
            pieces.append(piece)
        answer: dict[str, Any] = json.loads(b"".join(pieces))
        return answer


def _spawn() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "omni_stage.models.shared.text.template_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Signals of a terminal are for the stage server.
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
