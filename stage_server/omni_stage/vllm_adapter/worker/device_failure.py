"""Decides whether a failure in a step concerns one request or means that the device is broken."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

import torch

from omni_stage.errors import EngineDeadStageError, ModelExecutionError, OmniStageError

logger = logging.getLogger(__name__)

Probe = Callable[[], None]
"""Raises an exception, of any class, if the device does not work."""


def probe_device(device: torch.device) -> None:
    """Wait for a CUDA device and have it add eight numbers. Raises RuntimeError if it cannot; returns on the CPU."""
    if device.type != "cuda":
        return
    torch.cuda.synchronize(device)
    if float(torch.ones(8, device=device).sum()) != 8.0:
        raise RuntimeError("the device computes a wrong sum of eight ones")


def judge_failure(error: Exception, probe: Probe) -> OmniStageError:
    """Returns the error that a request gets for a model's exception; raises if the device is broken.

    torch reports a lost CUDA context as AcceleratorError. cuBLAS and cuDNN report it as RuntimeError, as they do for a
    shape that they refuse. So the device is tested after every other failure, except our own errors and lack of memory.

    Our own errors say what is wrong with the request and hold no contents, so the client gets them. Of other errors,
    the client gets at most the class. The log gets the class and where the error was raised, but not the message, which
    may quote values.

    Raises EngineDeadStageError, or the AcceleratorError itself.
    """
    if isinstance(error, torch.AcceleratorError | EngineDeadStageError):
        # Every later call would fail too: the engine must end and start again.
        raise error
    if isinstance(error, OmniStageError):
        return error
    kind = type(error).__name__
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error("the model failed on a request with %s, raised at:\n%s", kind, where)
    if isinstance(error, torch.OutOfMemoryError):
        return ModelExecutionError("the device has too little memory for this request; send a shorter one")
    try:
        probe()
    except Exception as broken:  # noqa: BLE001 - a broken device may raise anything
        logger.critical("the device does not work after a %s: %s", kind, type(broken).__name__)
        raise EngineDeadStageError(f"the device stopped working ({kind}); the stage server restarts") from error
    return ModelExecutionError(f"the model failed on this request ({kind}); the stage's log says where")
