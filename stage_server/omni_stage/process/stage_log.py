"""The log lines of a stage server. Each names the stage and the current request; none holds a request's content.

The interceptor sets the request id in a context variable, so functions need not pass the id on to log it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TextIO

from omni_proto.runtime.logs import LineFormatter, LogFormat, configure_logging, describe_by_frames

request_id_var: ContextVar[str] = ContextVar("omni_request_id", default="")


def stage_formatter(stage: str, log_format: LogFormat) -> LineFormatter:
    """Returns the formatter of a stage's lines. It shows the types and frames of exceptions, not their messages."""
    return LineFormatter(
        log_format,
        lead=lambda: {"stage": stage, "request_id": request_id_var.get()},
        describe_error=describe_by_frames,
    )


def configure_stage_logging(stage: str, log_format: LogFormat, stream: TextIO | None = None) -> None:
    """Send every logger of the process to `stream`, by default stderr; see configure_logging."""
    configure_logging(stage_formatter(stage, log_format), stream=stream)
