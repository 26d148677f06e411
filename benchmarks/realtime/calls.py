"""Calls with OpenAI's client for Python, unmodified: what they hear, when, and how they end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import openai
from websockets.exceptions import ConnectionClosed

from benchmarks.gateway.serving import MODEL
from benchmarks.paced.serving import TEXT_TOKENS

LONGEST_S: Final = 60.0
"""How long an event of a call may take."""


class Call:
    """One call, which is read all the time, as a client does that plays what it hears."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._response_id = ""
        self._events: asyncio.Queue[tuple[float, dict[str, Any]] | ConnectionClosed] = asyncio.Queue()
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        try:
            while True:
                event = json.loads(await self._connection.recv_bytes())
                self._events.put_nowait((time.perf_counter(), event))
        except ConnectionClosed as closed:
            self._events.put_nowait(closed)

    async def ask(self, prompt: str, *, in_conversation: bool = False) -> float:
        """Ask for a spoken answer, alone or to the conversation so far. Returns the seconds to its first audio."""
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]}
        wishes: dict[str, Any] = {"max_output_tokens": TEXT_TOKENS}
        if in_conversation:
            await self._connection.conversation.item.create(item=item)
        else:
            wishes |= {"conversation": "none", "input": [item]}
        began = time.perf_counter()
        await self._connection.response.create(response=wishes)
        self._response_id = (await self.until("response.created"))[1]["response"]["id"]
        return (await self.until("response.output_audio.delta"))[0] - began

    async def interrupt(self) -> float:
        """Interrupt the answer. Returns the seconds to its end, after which no audio comes."""
        began = time.perf_counter()
        await self._connection.response.cancel(response_id=self._response_id)
        return (await self.until("response.done"))[0] - began

    async def hold(self, prompt: str, turns: int) -> None:
        """Hold so many turns, each with the conversation so far. Every answer is interrupted when it is heard."""
        for _ in range(turns):
            await self.ask(prompt, in_conversation=True)
            await self.interrupt()

    async def until(self, kind: str) -> tuple[float, dict[str, Any]]:
        """Returns when the next event of a kind came, and the event. Raises ConnectionClosed, TimeoutError, and
        RuntimeError for an error."""
        async with asyncio.timeout(LONGEST_S):
            while True:
                found = await self._events.get()
                if isinstance(found, ConnectionClosed):
                    raise found
                if found[1]["type"] == kind:
                    return found
                if found[1]["type"] == "error":
                    raise RuntimeError(found[1]["error"]["message"])

    async def ending(self) -> str:
        """Returns how an answer ends that its client does not end: its status and error, or the call's close code."""
        try:
            response = (await self.until("response.done"))[1]["response"]
        except ConnectionClosed as closed:
            return f"closed with {closed.rcvd.code if closed.rcvd else 'nothing'}"
        error = (response["status_details"] or {}).get("error")
        return f"{response['status']}: {error['code']}" if error else str(response["status"])

    async def closing(self) -> str:
        """Returns how the gateway ends the call."""
        while not (found := await self.ending()).startswith("closed"):
            continue
        return found

    def drop(self) -> None:
        """Cut the connection, as a client does that dies. openai 2 has no method for it."""
        self._connection._connection.transport.abort()


@asynccontextmanager
async def open_calls(port: int, count: int) -> AsyncIterator[Sequence[Call]]:
    """Yields so many calls of a gateway. They end with the block."""
    client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    async with AsyncExitStack() as stack:
        calls = []
        for _ in range(count):
            call = Call(await stack.enter_async_context(client.realtime.connect(model=MODEL)))
            await call.until("session.created")
            calls.append(call)
        yield calls
