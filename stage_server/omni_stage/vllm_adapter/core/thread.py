"""A thread that runs calls one after another and, between them, steps engines.

It is a daemon thread, so that a process that must end while a model loads does not wait for it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol


class Stepped(Protocol):
    """What EngineThread steps."""

    def has_work(self) -> bool:
        """Returns whether a step would do anything."""
        ...

    def step(self) -> None:
        """Run one step. Must not raise."""
        ...


class EngineThread:
    """One thread that runs calls and steps every registered engine that has work, in turns."""

    _shared: EngineThread | None = None
    _shared_lock = threading.Lock()

    def __init__(self, name: str = "engine-steps") -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._engines: list[Stepped] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls) -> EngineThread:
        """Returns the process's only EngineThread."""
        with cls._shared_lock:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Run a call on the thread, between steps. Returns the future of its result."""
        future: Future[Any] = Future()
        self._calls.put((call, future))
        return future

    def stop(self) -> None:
        """End the thread after the calls submitted so far. This also ends the processes that the thread started."""
        self.submit(self._stopped.set)

    def register(self, engine: Stepped) -> None:
        """Step this engine from now on. Call it on the thread only."""
        self._engines.append(engine)

    def unregister(self, engine: Stepped) -> None:
        """Stop stepping this engine. Call it on the thread only."""
        if engine in self._engines:
            self._engines.remove(engine)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._run_calls(block=not any(engine.has_work() for engine in self._engines))
            for engine in list(self._engines):
                if engine.has_work():
                    engine.step()

    def _run_calls(self, *, block: bool) -> None:
        while True:
            try:
                call, future = self._calls.get(block=block)
            except queue.Empty:
                return
            block = False
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - reported through the future
                future.set_exception(error)
