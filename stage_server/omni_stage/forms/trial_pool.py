"""Lets callers' forms be tried in turn, in processes that can be killed, and remembers the results.

Used from one event loop. The process (omni_stage/forms/worker.py) starts with the first form, and is replaced if it
ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import socket
import subprocess
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from omni_proto.runtime.limits import USERS, Client
from omni_stage.errors import InvalidRequestError, TooManyRequestsError
from omni_stage.forms.trial import Form
from omni_stage.forms.worker import TOO_SLOW
from omni_stage.process.worker_process import WorkerProcess

TRIALS: Final = 2
"""Forms that are tried at the same time."""
WAITING: Final = 8
"""Forms of one caller that may wait."""
REMEMBERED: Final = 4096
"""Results that are kept."""
CACHED_BYTES: Final = 256 << 20
"""Size of the compiled forms whose results are kept: half of the engine's cache (VLLM_XGRAMMAR_CACHE_MB). The engine
compiles a form that it has no more, on few threads and in order of arrival, so such a form waits for its turn here."""
START_TIMEOUT_S: Final = 120.0

_log = logging.getLogger(__name__)


class TrialTurns:
    """Gives a number of places to clients in turn, and to the users of a client in turn. Used from one event loop.

    One user never holds the last place, so that others need not wait until its forms are tried.
    """

    def __init__(self, places: int = TRIALS, waiting: int = WAITING) -> None:
        self._free = places
        self._most_held = max(1, places - 1)
        self._most = waiting
        self._held: Counter[Client] = Counter()
        self._queues: OrderedDict[str, OrderedDict[Client, deque[asyncio.Future[None]]]] = OrderedDict()
        """What waits, by address and user; the one whose turn is next comes first."""

    @asynccontextmanager
    async def place(self, client: Client) -> AsyncIterator[None]:
        """Wait for a place and hold it. Raises TooManyRequestsError if too many calls of this user or client wait."""
        if self._free and self._held[client] < self._most_held:
            self._take(client)
        else:
            await self._wait(client)
        try:
            yield
        finally:
            self._give_back(client)

    async def _wait(self, client: Client) -> None:
        users = self._queues.setdefault(client.address, OrderedDict())
        queue = users.setdefault(client, deque())
        try:
            self._check_room(users, queue)
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            queue.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give_back(client)
                elif turn in queue:
                    queue.remove(turn)
                raise
        finally:
            self._drop_empty(client)

    def _check_room(
        self, users: Mapping[Client, deque[asyncio.Future[None]]], queue: deque[asyncio.Future[None]]
    ) -> None:
        for waiting, most, whose in (
            (len(queue), self._most, "caller"),
            (sum(map(len, users.values())), USERS * self._most, "client and its users"),
        ):
            if waiting >= most:
                raise TooManyRequestsError(
                    f"{most} new forms of structured output of this {whose} already wait to be checked; retry later",
                    limit=f"{most} forms per {whose}",
                    retry_after_s=1.0,
                )

    def _take(self, client: Client) -> None:
        self._free -= 1
        self._held[client] += 1

    def _give_back(self, client: Client) -> None:
        """Free a client's place, and give free places to those whose turn is next."""
        self._free += 1
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]
        while self._free and (following := self._next()) is not None:
            users = self._queues[following.address]
            turn = users[following].popleft()
            # A user who had a turn is last in the next round.
            users.move_to_end(following)
            self._queues.move_to_end(following.address)
            self._drop_empty(following)
            if not turn.done():
                self._take(following)
                turn.set_result(None)

    def _next(self) -> Client | None:
        waiting = (client for users in self._queues.values() for client, queue in users.items() if queue)
        return next((client for client in waiting if self._held[client] < self._most_held), None)

    def _drop_empty(self, client: Client) -> None:
        """Forget what nobody waits in."""
        users = self._queues.get(client.address, OrderedDict())
        if not users.get(client, True):
            del users[client]
        if not users:
            self._queues.pop(client.address, None)


class TrialPool:
    """Tries forms, each once."""

    def __init__(self, tokenizer_info: Callable[[], Awaitable[bytes]]) -> None:
        """`tokenizer_info` returns xgrammar's information about the engine's tokenizer, as JSON."""
        self._tokenizer_info = tokenizer_info
        self._turns = TrialTurns()
        self._results: OrderedDict[bytes, _Result] = OrderedDict()
        self._cached = 0
        self._process: asyncio.Task[_Process] | None = None

    async def check(self, form: Form, *, caller: Client, field: str) -> None:
        """Raises InvalidRequestError if the form cannot be used or costs too much.

        Cancelling the call frees its place, and ends the trial. Raises TooManyRequestsError.
        """
        key = hashlib.sha256(f"{form.kind} {form.text}".encode()).digest()
        if key not in self._results:
            async with self._turns.place(caller):
                # Meanwhile another call may have tried the same form.
                if key not in self._results:
                    try:
                        self._remember(key, await (await self._started()).run(form))
                    except _EndedError as error:
                        # Not remembered, because another form may have ended the process.
                        raise _refuse(TOO_SLOW, field) from error
        why = self._results[key].error
        self._results.move_to_end(key)
        while len(self._results) > 1 and (len(self._results) > REMEMBERED or self._cached > CACHED_BYTES):
            self._cached -= self._results.popitem(last=False)[1].size
        if why is not None:
            raise _refuse(why, field)

    def _remember(self, key: bytes, result: _Result) -> None:
        self._results[key] = result
        self._cached += result.size

    def warm(self) -> None:
        """Start the process without waiting for it, so that the first form need not wait either."""
        if self._process is None:
            self._process = asyncio.get_running_loop().create_task(self._start())
            self._process.add_done_callback(_log_failure)

    def close(self) -> None:
        """End the process. Idempotent."""
        if self._process is not None:
            self._process.cancel()
            if self._process.done() and not self._process.cancelled() and self._process.exception() is None:
                self._process.result().kill()

    async def _started(self) -> _Process:
        if self._process is None or (
            self._process.done() and (self._process.exception() is not None or not self._process.result().is_alive)
        ):
            self._process = asyncio.get_running_loop().create_task(self._start())
        # The start continues if this caller leaves.
        return await asyncio.shield(self._process)

    async def _start(self) -> _Process:
        return await _Process.start(await self._tokenizer_info())


def _refuse(why: str, field: str) -> InvalidRequestError:
    return InvalidRequestError(f"the form of structured output cannot be used: {why}", field=field)


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of a trial."""

    error: str | None
    """Why the form cannot be used; None if it can."""
    size: int
    """Bytes of the compiled form."""


class _EndedError(Exception):
    """The process ended while it tried a form."""


class _Process(WorkerProcess):
    """A process that tries forms."""

    def __init__(self, process: subprocess.Popen[bytes], ours: socket.socket) -> None:
        super().__init__(process, ours)
        self._number = 0
        self._answers: dict[int, asyncio.Future[_Result]] = {}
        self._reader: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, info: bytes) -> _Process:
        """Start a process and wait until it can try forms. Raises OmniStageError."""
        file = _memory_file(info)
        try:
            started = cls.spawn("omni_stage.forms.worker", file)
        finally:
            os.close(file)
        await started.wait_ready("the process that tries forms", START_TIMEOUT_S)
        started._reader = asyncio.get_running_loop().create_task(started._read())
        return started

    @property
    def is_alive(self) -> bool:
        """Whether the process runs and answers."""
        return self._reader is not None and not self._reader.done() and super().is_alive

    async def run(self, form: Form) -> _Result:
        """Try a form. Raises _EndedError if the process ends."""
        self._number += 1
        number, loop = self._number, asyncio.get_running_loop()
        answer: asyncio.Future[_Result] = loop.create_future()
        self._answers[number] = answer
        file = _memory_file(form.text.encode())
        try:
            socket.send_fds(self._socket, [json.dumps({"try": number, "kind": form.kind}).encode()], [file])
            return await answer
        except ConnectionError as error:
            raise _EndedError from error
        except asyncio.CancelledError:
            with suppress(OSError):
                # If the process has ended, there is nothing to leave.
                self._socket.send(json.dumps({"leave": number}).encode())
            raise
        finally:
            os.close(file)
            self._answers.pop(number, None)

    async def _read(self) -> None:
        while packet := await self.receive():
            answer = json.loads(packet)
            waiting = self._answers.get(answer["number"])
            if waiting is not None and not waiting.done():
                waiting.set_result(_Result(answer["error"], answer["bytes"]))
        _log.warning("the process that tries forms ended; another one replaces it")
        for waiting in self._answers.values():
            if not waiting.done():
                # Memory ran out, perhaps because of one of these forms.
                waiting.set_exception(_EndedError())

    def kill(self) -> None:
        """End the process. Idempotent."""
        if self._reader is not None:
            self._reader.cancel()
        super().kill()


def _log_failure(start: asyncio.Task[_Process]) -> None:
    if not start.cancelled() and (error := start.exception()) is not None:
        _log.error("the process that tries forms cannot be started", exc_info=error)


def _memory_file(data: bytes) -> int:
    """Returns the descriptor of a new file in memory with this content."""
    descriptor = os.memfd_create("form", os.MFD_CLOEXEC)
    with open(os.dup(descriptor), "wb") as file:
        file.write(data)
    return descriptor
