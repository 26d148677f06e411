"""Reports to the stage server why its engine's process cannot start with a configuration.

vLLM 0.32 reports an engine core's end to the process that started it, but only logs its exception. When our worker
refuses a configuration (a checkpoint that does not fit, settings that cannot give correct rows), the error's message
(with its remedy) and field belong in the stage's termination message. So the starting process names a file in the
environment, and the worker writes its refusal there before it raises it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from omni_stage.errors import ConfigurationError

START_ERROR_FILE = "OMNI_START_ERROR_FILE"
"""Environment variable: where an engine's process writes why it refuses to start."""


@contextmanager
def collecting_start_errors() -> Iterator[Callable[[], ConfigurationError | None]]:
    """Wrap an engine's start in the starting process. Yields a function that returns the engine's refusal, if any."""
    with tempfile.TemporaryDirectory(prefix="omni-start-") as folder:
        file = Path(folder) / "refusal.json"
        os.environ[START_ERROR_FILE] = str(file)
        try:
            yield lambda: _read(file)
        finally:
            os.environ.pop(START_ERROR_FILE, None)


@contextmanager
def reporting_start_errors() -> Iterator[None]:
    """Wrap code of the engine's process that may raise ConfigurationError; in other processes this does nothing."""
    try:
        yield
    except ConfigurationError as error:
        file = os.environ.get(START_ERROR_FILE)
        if file:
            text = json.dumps({"message": str(error), "field": error.details.field})
            part = Path(f"{file}.{os.getpid()}")
            part.write_text(text, encoding="utf-8")
            part.replace(file)  # atomic, because several ranks may write it
        raise


def _read(file: Path) -> ConfigurationError | None:
    try:
        refusal = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return ConfigurationError(refusal["message"], field=refusal["field"])
