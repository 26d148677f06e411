"""Reports to the stage server why its engine's process does not start.

vLLM 0.32 reports the end of an engine core to the process that started it, but only logs the exception. The exception's
message belongs in the stage's termination message. So the starting process names a file in the environment, and the
engine's processes write the exception to that file when they log it.

Private interface of vLLM 0.32: the loggers and messages in _LOGGED (v1/engine/core.py,
v1/executor/multiproc_executor.py).
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from omni_stage.errors import ConfigurationError

_log = logging.getLogger(__name__)
START_ERROR_FILE = "OMNI_START_ERROR_FILE"
"""Environment variable: where an engine's process writes why it does not start."""
_LOGGED = {
    "vllm.v1.engine.core": "EngineCore failed to start.",
    "vllm.v1.executor.multiproc_executor": "WorkerProc failed to start.",
}


@dataclass(frozen=True, slots=True)
class StartError:
    """An exception that ended an engine's process while it started."""

    kind: str
    """Name of the exception's class."""
    message: str
    field: str = ""
    """The wrong field, if the exception is a ConfigurationError."""


@contextmanager
def collecting_start_errors() -> Iterator[Callable[[], StartError | None]]:
    """Wrap an engine's start in the starting process. Yields a function that returns the reported error, if any."""
    with tempfile.TemporaryDirectory(prefix="omni-start-") as folder:
        file = Path(folder) / "error.json"
        os.environ[START_ERROR_FILE] = str(file)
        try:
            yield lambda: _read(file)
        finally:
            os.environ.pop(START_ERROR_FILE, None)


def report_start_errors() -> None:
    """Make this process report the error if an engine does not start in it. Idempotent.

    Our vLLM plugin calls this; every engine process loads plugins before anything else.
    """
    for name in _LOGGED:
        logger = logging.getLogger(name)
        if not any(isinstance(one, _Reporter) for one in logger.filters):
            logger.addFilter(_Reporter())


class _Reporter(logging.Filter):
    """Writes a logged start error to the file. A filter, because vLLM replaces its loggers' handlers in a fork."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns True: every record is logged."""
        file = os.environ.get(START_ERROR_FILE)
        error = record.exc_info[1] if record.exc_info else None
        if file and error is not None and record.getMessage() == _LOGGED.get(record.name):
            try:
                _write(Path(file), error)
            except OSError as failure:
                _log.warning("cannot report to the stage server why the engine does not start: %s", failure.strerror)
        return True


def _write(file: Path, error: BaseException) -> None:
    field = error.details.field if isinstance(error, ConfigurationError) else ""
    part = Path(f"{file}.{os.getpid()}")
    part.write_text(json.dumps(asdict(StartError(type(error).__name__, str(error), field))), encoding="utf-8")
    # Only the first error counts. If a process fails, the processes that wait for it report errors too.
    with suppress(FileExistsError):
        os.link(part, file)
    part.unlink()


def _read(file: Path) -> StartError | None:
    try:
        return StartError(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
