"""Logs: JSON or text on stderr; every line that is about a pipeline says which, and of which generation.

The pipeline rides in a context variable that `reconcile` sets, so that code below needs not pass it on.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal, TextIO

LogFormat = Literal["json", "text"]

_subject: ContextVar[dict[str, object]] = ContextVar("omni_operator_subject", default={})  # noqa: B039 - never mutated
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# kopf's own context: the reference and settings of the object it handles.
_KOPF = frozenset({"k8s_skip", "k8s_ref", "settings"})


@contextmanager
def log_subject(namespace: str, name: str, generation: int | None = None) -> Iterator[None]:
    """Lines from within are about this pipeline."""
    subject: dict[str, object] = {"namespace": namespace, "name": name}
    if generation is not None:
        subject["generation"] = generation
    token = _subject.set(subject)
    try:
        yield
    finally:
        _subject.reset(token)


class OperatorFormatter(logging.Formatter):
    """Base: knows the pipeline in work."""

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        """What a line says, in order."""
        extras = {key: value for key, value in vars(record).items() if key not in _STANDARD | _KOPF}
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_subject.get(),
            **extras,
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = self.formatException(record.exc_info)
        return fields


class JsonFormatter(OperatorFormatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.fields(record), default=str, ensure_ascii=False)


class TextFormatter(OperatorFormatter):
    """time level logger: message key=value ..."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields(record)
        head = " ".join(str(fields.pop(key)) for key in ("time", "level", "logger"))
        message = fields.pop("message")
        return f"{head}: {message}" + "".join(f" {key}={value}" for key, value in fields.items())


def configure_logging(log_format: LogFormat, level: str, stream: TextIO | None = None) -> None:
    """Send every logger of the process to stream (stderr), replacing earlier handlers of the root logger."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Their INFO lines tell of single requests and handlers, not of pipelines.
    for noisy in ("asyncio", "aiohttp", "kopf"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
