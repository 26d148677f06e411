"""How a stage server ends: its exit code, and the termination message that shows the reason in Kubernetes."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from omni_proto.pod_contract import (
    DEFAULT_TERMINATION_LOG,
    TERMINATION_LOG_VARIABLE,
    ExitCode,
    Termination,
    TerminationReason,
)
from omni_stage.errors import ConfigurationError, EngineDeadStageError, OmniStageError

_log = logging.getLogger(__name__)


def termination_log_path() -> Path | None:
    """Returns the file that kubelet reads: the one that OMNI_TERMINATION_LOG names, else /dev/termination-log.

    Returns None if the variable is not set and the default cannot be written.
    """
    given = os.environ.get(TERMINATION_LOG_VARIABLE)
    if given:
        return Path(given)
    return Path(DEFAULT_TERMINATION_LOG) if os.access(DEFAULT_TERMINATION_LOG, os.W_OK) else None


def write_termination(reason: TerminationReason, message: str, field: str = "") -> None:
    """Write the message to the file that kubelet reads, if there is one. A failure to write it is only logged."""
    path = termination_log_path()
    if path is None:
        return
    try:
        path.write_text(Termination(reason, message, field).encode(), encoding="utf-8")
    except OSError as error:
        _log.warning("cannot write the termination message", extra={"path": str(path), "error": error.strerror})


def report_start_failure(error: OmniStageError) -> ExitCode:
    """Log why the stage cannot start, and write the termination message. Returns the matching exit code."""
    _log.critical("the stage cannot start: %s", error, extra={"field": error.details.field})
    if isinstance(error, ConfigurationError):
        write_termination(TerminationReason.INVALID_CONFIGURATION, str(error), error.details.field)
        return ExitCode.BAD_CONFIGURATION
    if isinstance(error, EngineDeadStageError):
        write_termination(TerminationReason.ENGINE_DEAD, str(error), error.details.field)
        return ExitCode.ENGINE_DEAD
    write_termination(TerminationReason.START_FAILED, str(error), error.details.field)
    return ExitCode.FAILED
