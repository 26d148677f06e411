"""Logging for every process: JSON or text on stderr, with fields that name the subject of each line.

This module imports only the standard library.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Literal, TextIO, TypeAlias

LogFormat: TypeAlias = Literal["json", "text"]
Fields: TypeAlias = Callable[[], Mapping[str, object]]
"""Returns additional fields for the line that is being written, in order."""

NOISY: Final = ("aiohttp", "asyncio", "httpx", "httpx2", "kopf", "urllib3")
"""Libraries whose INFO lines describe single requests, selectors and handlers. huggingface_hub uses httpx2, whose lines
contain whole addresses, signatures included."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# Attributes that kopf adds to its records: reference and settings of the object that it handles.
_FOREIGN = frozenset({"k8s_skip", "k8s_ref", "settings"})
_NOT_EXTRA: Final = _STANDARD | _FOREIGN
_ENCODER: Final = json.JSONEncoder(default=str, ensure_ascii=False)


def no_fields() -> Mapping[str, object]:
    """Returns no fields."""
    return {}


def describe_fully(error: BaseException, trace: TracebackType | None) -> str:
    """Returns an error with its causes and all messages, as Python prints it."""
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip("\n")


def describe_by_frames(error: BaseException, trace: TracebackType | None = None) -> str:
    """Returns the types and stack frames of an error and its causes, without messages, which may quote a prompt."""
    lines = []
    current: BaseException | None = error
    while current is not None:
        frames = traceback.extract_tb(current.__traceback__)
        places = " < ".join(f"{frame.filename}:{frame.lineno}:{frame.name}" for frame in reversed(frames))
        lines.append(f"{type(current).__module__}.{type(current).__qualname__} at {places or 'unknown'}")
        current = current.__cause__
    return " caused by ".join(lines)


class LineFormatter(logging.Formatter):
    """Formats each record as one line, except that text keeps the line breaks of a message or traceback.

    JSON: one object. Text: `TIME LEVEL LEAD... LOGGER: MESSAGE KEY=VALUE ...`, with a dash for an empty lead field.
    """

    def __init__(
        self,
        log_format: LogFormat,
        lead: Fields = no_fields,
        about: Fields = no_fields,
        describe_error: Callable[[BaseException, TracebackType | None], str] = describe_fully,
    ) -> None:
        """lead returns the fields before the logger's name, and must always return the same ones. about returns those
        after the message."""
        super().__init__()
        self._log_format = log_format
        self._lead = lead
        self._about = about
        self._describe_error = describe_error

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as a line."""
        head = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            **self._lead(),
            "logger": record.name,
        }
        extras = {key: value for key, value in vars(record).items() if key not in _NOT_EXTRA}
        tail = {**self._about(), **extras}
        if record.exc_info and record.exc_info[1] is not None:
            tail["error"] = self._describe_error(record.exc_info[1], record.exc_info[2])
        if self._log_format == "json":
            fields = {**head, "message": record.getMessage(), **tail}
            return _ENCODER.encode(fields)
        words = " ".join(str(value or "-") for value in head.values())
        return f"{words}: {record.getMessage()}" + "".join(f" {key}={value}" for key, value in tail.items())


def configure_logging(formatter: LineFormatter, level: str = "info", stream: TextIO | None = None) -> None:
    """Send every logger of the process to stream (default: stderr), replacing earlier handlers of the root logger."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def adopt_logger(name: str) -> None:
    """Route the logger of a library that installs its own handlers (vLLM) through the root logger."""
    logger = logging.getLogger(name)
    logger.handlers.clear()
    logger.propagate = True
