"""Adds the pipeline that is being reconciled, and its generation, to every log line of the operator.

The pipeline is in a context variable, so that functions need not pass it as an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

from omni_proto.runtime.logs import LineFormatter, LogFormat, configure_logging

_subject: ContextVar[dict[str, object]] = ContextVar("omni_operator_subject", default={})  # noqa: B039 - never mutated


@contextmanager
def log_subject(namespace: str, name: str, generation: int | None = None) -> Iterator[None]:
    """Add this pipeline to all log lines that are written within the context."""
    subject: dict[str, object] = {"namespace": namespace, "name": name}
    if generation is not None:
        subject["generation"] = generation
    token = _subject.set(subject)
    try:
        yield
    finally:
        _subject.reset(token)


def configure_operator_logging(log_format: LogFormat, level: str, stream: TextIO | None = None) -> None:
    """Write the lines of every logger of the process to stream (default: stderr); see configure_logging."""
    configure_logging(LineFormatter(log_format, about=_subject.get), level, stream)
