"""Runs a coroutine immediately. A task would begin in the event loop's next iteration, after all callbacks that are
ready."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

_T = TypeVar("_T")


class Started(Generic[_T]):
    """The constructor runs a coroutine up to its first wait. Await the object once, in a task, to run the rest.

    The part before the first wait runs in no task of its own, so it must not use asyncio.timeout or
    asyncio.current_task. From Python 3.12 on, an eager task also begins immediately.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self._coroutine = coroutine
        self._waits_for: Any = None
        self._result: list[_T] = []
        self._error: BaseException | None = None
        try:
            self._waits_for = coroutine.send(None)
        except StopIteration as over:
            self._result.append(over.value)
        except Exception as error:  # noqa: BLE001 - raised by __await__
            self._error = error

    def __await__(self) -> Generator[Any, Any, _T]:
        """Returns the coroutine's result, or raises its error. A cancellation reaches the coroutine."""
        if self._error is not None:
            raise self._error
        if self._result:
            return self._result[0]
        waits_for = self._waits_for
        while True:
            thrown: BaseException | None = None
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - the coroutine gets it
                thrown = error
            try:
                waits_for = self._coroutine.send(None) if thrown is None else self._coroutine.throw(thrown)
            except StopIteration as over:
                return cast("_T", over.value)

    def close(self) -> None:
        """End the coroutine where it waits, if it has not ended."""
        self._coroutine.close()
