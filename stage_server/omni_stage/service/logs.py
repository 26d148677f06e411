"""Logs: JSON or text on stderr, every line with stage and request id, never what a request holds.

The request id rides in a context variable that the interceptor sets, so that code below needs not pass it on.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal, TextIO

LogFormat = Literal["json", "text"]

request_id_var: ContextVar[str] = ContextVar("omni_request_id", default="")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def frames_of(error: BaseException) -> str:
    """Type and places of an error and of its causes, without messages: those may quote a prompt."""
    lines = []
    current: BaseException | None = error
    while current is not None:
        frames = traceback.extract_tb(current.__traceback__)
        places = " < ".join(f"{frame.filename}:{frame.lineno}:{frame.name}" for frame in reversed(frames))
        lines.append(f"{type(current).__module__}.{type(current).__qualname__} at {places or 'unknown'}")
        current = current.__cause__
    return " caused by ".join(lines)


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _when(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class StageFormatter(logging.Formatter):
    """Base: knows the stage; an exception is given by its frames only."""

    def __init__(self, stage: str) -> None:
        super().__init__()
        self.stage = stage

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        """What a line says, in order."""
        fields: dict[str, object] = {
            "time": _when(record),
            "level": record.levelname,
            "stage": self.stage,
            "request_id": request_id_var.get(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = frames_of(record.exc_info[1])
        return fields


class JsonFormatter(StageFormatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.fields(record), default=str, ensure_ascii=False)


class TextFormatter(StageFormatter):
    """time level stage request_id logger: message key=value ..."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields(record)
        head = " ".join(str(fields.pop(key) or "-") for key in ("time", "level", "stage", "request_id", "logger"))
        message = fields.pop("message")
        tail = "".join(f" {key}={value}" for key, value in fields.items())
        return f"{head}: {message}{tail}"


def configure_logging(stage: str, log_format: LogFormat, stream: TextIO | None = None) -> None:
    """Send every logger of the process to stream (stderr), replacing earlier handlers of the root logger."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(stage) if log_format == "json" else TextFormatter(stage))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    # Their INFO lines tell of single HTTP requests and selectors, not of the stage.
    for noisy in ("asyncio", "httpx", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def adopt_logger(name: str) -> None:
    """Route a library's logger that brought handlers of its own (vLLM) through the root logger."""
    logger = logging.getLogger(name)
    logger.handlers.clear()
    logger.propagate = True
