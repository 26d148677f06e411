"""What a stage server leaves behind when it ends: an exit code, and why it could not start."""

from __future__ import annotations

import json
import logging
import os
from enum import IntEnum
from pathlib import Path

from omni_stage.errors import ConfigurationError, EngineDeadStageError, OmniStageError

TERMINATION_LOG_VARIABLE = "OMNI_TERMINATION_LOG"
DEFAULT_TERMINATION_LOG = Path("/dev/termination-log")
MAX_MESSAGE_BYTES = 1024

_log = logging.getLogger(__name__)


class ExitCode(IntEnum):
    """Exit codes of `python -m omni_stage`."""

    DRAINED = 0
    FAILED = 1
    ENGINE_DEAD = 70
    BAD_CONFIGURATION = 78
    ABORTED = 143


def termination_log_path() -> Path | None:
    """The file that kubelet reads (OMNI_TERMINATION_LOG, else /dev/termination-log if it can be written)."""
    given = os.environ.get(TERMINATION_LOG_VARIABLE)
    if given:
        return Path(given)
    return DEFAULT_TERMINATION_LOG if os.access(DEFAULT_TERMINATION_LOG, os.W_OK) else None


def encode_termination(reason: str, message: str, field: str = "") -> str:
    """The message as JSON {reason, message, field} with at most 1 KiB of message."""
    short = message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
    return json.dumps({"reason": reason, "message": short, "field": field}, ensure_ascii=False)


def write_termination(reason: str, message: str, field: str = "") -> None:
    """Write the message where kubelet looks for it. A file that cannot be written is logged, no more."""
    path = termination_log_path()
    if path is None:
        return
    try:
        path.write_text(encode_termination(reason, message, field), encoding="utf-8")
    except OSError as error:
        _log.warning("cannot write the termination message", extra={"path": str(path), "error": error.strerror})


def report_start_failure(error: OmniStageError) -> ExitCode:
    """Log why the stage cannot start and leave it for kubelet. Returns the exit code that says so."""
    _log.critical("the stage cannot start: %s", error, extra={"field": error.details.field})
    if isinstance(error, ConfigurationError):
        write_termination("InvalidConfiguration", str(error), error.details.field)
        return ExitCode.BAD_CONFIGURATION
    reason = "EngineDead" if isinstance(error, EngineDeadStageError) else "StartFailed"
    write_termination(reason, str(error), error.details.field)
    return ExitCode.ENGINE_DEAD if isinstance(error, EngineDeadStageError) else ExitCode.FAILED
