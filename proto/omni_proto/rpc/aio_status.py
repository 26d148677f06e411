"""Finds the true status of an asyncio call, which a race in grpc.aio may hide.

When a stage ends a call while its caller still writes, the write fails. grpc.aio then replaces the status by INTERNAL
"Internal error from Core", before or after the true status arrives (1.85, `_call.py`: `_write` calls
`set_internal_error`). A refusal with RetryInfo would look like a fault. Every change of the status runs the done
callbacks, so a done callback sees the true status. This module uses only public interfaces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import grpc
import grpc.aio

_MASK: Final = "Internal error from Core"
_PATIENCE_S: Final = 2.0
_POLL_S: Final = 0.005


class StatusKeeper:
    """Remembers the true status of a call. Make it right after the call, in its event loop."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._true: grpc.aio.AioRpcError | None = None
        self._seen = False
        call.add_done_callback(self._note)

    async def unmask(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError | None:
        """Returns the error that the call truly ended with, or None if it ended with OK.

        Returns `error` itself, unless it reports only that a write failed. The true status usually follows a failed
        write at once; if the true status does not come within 2 s, `error` is returned. Read the call with `async for`,
        which delivers all messages before the error; `call.read()` stops at the false status and loses messages.
        """
        if not _is_mask(error):
            return error
        for _ in range(round(_PATIENCE_S / _POLL_S)):
            self._note(self._call)
            if self._seen:
                return self._true
            await asyncio.sleep(_POLL_S)
        return error

    def _note(self, call: Any) -> None:
        if self._seen or not call.done():
            return
        code, details = _result(call.code()), _result(call.details())
        if code is None or code is grpc.StatusCode.OK:
            self._seen = code is not None
            return
        error = grpc.aio.AioRpcError(
            code,
            initial_metadata=grpc.aio.Metadata(),
            trailing_metadata=_result(call.trailing_metadata()) or grpc.aio.Metadata(),
            details=details,
        )
        if not _is_mask(error):
            self._true, self._seen = error, True


def _is_mask(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.INTERNAL and error.details() == _MASK


def _result(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Returns the result of a coroutine that does not wait, such as a done call's code(); None if it would wait."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    return None
