"""Calls with OpenAI's client for Python, unmodified: what they hear, when, and how they end."""

from __future__ import annotations

import asyncio
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
    """One call. Each answer stands alone, so that all have the same prompt."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._response_id = ""

    async def ask(self, prompt: str) -> float:
        """Ask for a spoken answer. Returns the seconds to its first audio."""
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]}
        began = time.perf_counter()
        await self._connection.response.create(
            response={"conversation": "none", "input": [item], "max_output_tokens": TEXT_TOKENS}
        )
        self._response_id = (await self.until("response.created")).response.id
        await self.until("response.output_audio.delta")
        return time.perf_counter() - began

    async def interrupt(self) -> float:
        """Interrupt the answer. Returns the seconds to its end, after which no audio comes."""
        began = time.perf_counter()
        await self._connection.response.cancel(response_id=self._response_id)
        await self.until("response.done")
        return time.perf_counter() - began

    async def until(self, kind: str) -> Any:
        """Returns the next event of a kind. Raises ConnectionClosed, TimeoutError, RuntimeError for an error."""
        async with asyncio.timeout(LONGEST_S):
            while True:
                event = await self._connection.recv()
                if event.type == kind:
                    return event
                if event.type == "error":
                    raise RuntimeError(event.error.message)

    async def ending(self) -> str:
        """Returns how an answer ends that its client does not end: its status and error, or the call's close code."""
        try:
            response = (await self.until("response.done")).response
        except ConnectionClosed as closed:
            return f"closed with {closed.rcvd.code if closed.rcvd else 'nothing'}"
        error = getattr(response.status_details, "error", None)
        return f"{response.status}: {error.code}" if error else str(response.status)

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
