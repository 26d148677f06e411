"""What every log line of a stage server says: the stage and the request in work, never what a request holds.

The request id rides in a context variable that the interceptor sets, so that code below need not pass it on.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TextIO

from omni_proto.logs import LineFormatter, LogFormat, configure_logging, describe_by_frames

request_id_var: ContextVar[str] = ContextVar("omni_request_id", default="")


def stage_formatter(stage: str, log_format: LogFormat) -> LineFormatter:
    """Returns the form of a stage's lines: an exception is given by its frames only."""
    return LineFormatter(
        log_format,
        lead=lambda: {"stage": stage, "request_id": request_id_var.get()},
        describe_error=describe_by_frames,
    )


def configure_stage_logging(stage: str, log_format: LogFormat, stream: TextIO | None = None) -> None:
    """Send every logger of the process to stream (stderr); see configure_logging."""
    configure_logging(stage_formatter(stage, log_format), stream=stream)
