"""The load client, a separate process: `python -m benchmarks.gateway.load`.

Each line of stdin is a `Run` in JSON. The process sends all requests of the run at the same time. Then it prints a
`Result` as one line of JSON. A `Result` contains, for each request, the time of its first text or audio, the time of
its end, and its number of tokens. It also contains the processor time of the load client itself.

The process speaks plain HTTP/1.1 to any server with OpenAI's API, over connections opened beforehand, or gRPC to an
entry stage.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import httptools
import uvloop

from omni_proto.client import AsyncOmniClient, AudioChunk, StageFinished, TextDelta, user

GRPC: Final = "grpc"
_EVENT: Final = b"data: "


@dataclass(slots=True)
class Run:
    """The requests of one run: their server and what they ask for."""

    port: int
    count: int
    tokens: int
    prompts: list[str]
    """One for each request."""
    model: str = ""
    kind: str = "http"
    """http or grpc."""
    speech: bool = False
    """Whether to ask for text and audio, and to time the first audio instead of the first text."""
    leave: bool = False
    """Whether the client ends a request as soon as its first text or audio has arrived."""

    def to_json(self) -> dict[str, Any]:
        """Returns the run in the form that the process reads from stdin."""
        return asdict(self)


@dataclass(slots=True)
class Answer:
    """Times of one request, in seconds since all requests of the run were sent."""

    first_s: float = 0.0
    done_s: float = 0.0
    tokens: int = 0
    """Text tokens, as the server counts them."""
    error: str = ""


class Stream(asyncio.Protocol):
    """A connection that sends one request at a time and reads its server-sent events."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._began = 0.0
        self.answer = Answer()
        self._speech = self._leave = False
        self._rest = b""
        self._ended: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when the connection is open."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Called by asyncio when a piece of the answer has arrived."""
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the server, or `close`, has ended the connection."""
        self._end(f"the connection ended: {exc}")

    def send(self, run: Run, prompt: str, began: float) -> asyncio.Future[None]:
        """Send a request. Returns a future that is done when the answer has ended.

        `began`: the perf_counter time from which the answer's times are counted. Raises RuntimeError if not connected.
        """
        if self._transport is None:
            raise RuntimeError("not connected")
        self._began, self._speech, self._leave = began, run.speech, run.leave
        self._ended = asyncio.get_running_loop().create_future()
        body = json.dumps(request_body(run, prompt)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
        self._transport.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        return self._ended

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()

    def on_body(self, data: bytes) -> None:
        """Called by httptools with bytes of the body."""
        if self._parser.get_status_code() != 200:
            self.answer.error += data.decode(errors="replace")[:300]
            return
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            if event.startswith(_EVENT):
                self._read(event[len(_EVENT) :])

    def on_message_complete(self) -> None:
        """Called by httptools when the answer has ended."""
        self._end("")

    def _read(self, data: bytes) -> None:
        if b'"usage":{' in data:  # Servers send the usage even if the tokens of a short answer make no text.
            usage = json.loads(data)["usage"]
            details = usage.get("completion_tokens_details") or {}
            self.answer.tokens = details.get("text_tokens") or usage["completion_tokens"]
        elif b'"error":{' in data:
            self.answer.error = data.decode()
        elif not self.answer.first_s and data != b"[DONE]" and has_output(json.loads(data), speech=self._speech):
            self.answer.first_s = time.perf_counter() - self._began
            if self._leave:
                self._end("")
                self.close()

    def _end(self, error: str) -> None:
        if self._ended is not None and not self._ended.done():
            self.answer.done_s = time.perf_counter() - self._began
            self.answer.error = self.answer.error or error
            self._ended.set_result(None)


def request_body(run: Run, prompt: str) -> dict[str, Any]:
    """Returns the body of a chat completion that both vLLM's server and the gateway accept."""
    body: dict[str, Any] = {
        "model": run.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": run.tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if run.speech:
        body |= {"modalities": ["text", "audio"], "audio": {"format": "pcm16"}}
    return body


def has_output(chunk: dict[str, Any], *, speech: bool) -> bool:
    """Returns whether a chunk of a stream holds audio if `speech`, else whether it holds text."""
    for choice in chunk.get("choices", ()):
        delta = choice["delta"]
        if (delta.get("audio") or {}).get("data") if speech else delta.get("content"):
            return True
    return False


async def send_http(run: Run) -> list[Answer]:
    """Send all requests of a run, each on its own connection. Returns the answers."""
    loop = asyncio.get_running_loop()
    streams = [(await loop.create_connection(Stream, "127.0.0.1", run.port))[1] for _ in range(run.count)]
    try:
        began = time.perf_counter()
        ended = [stream.send(run, prompt, began) for stream, prompt in zip(streams, run.prompts, strict=True)]
        await asyncio.gather(*ended)
    finally:
        for stream in streams:
            stream.close()
    return [stream.answer for stream in streams]


async def send_grpc(run: Run, connect: Callable[[str], AsyncOmniClient] = AsyncOmniClient) -> list[Answer]:
    """Send all requests of a run to an entry stage, on one channel. Returns the answers."""
    async with connect(f"127.0.0.1:{run.port}") as client:
        stage = await client.get_stage()
        began = time.perf_counter()
        return list(await asyncio.gather(*(_ask(client, stage.stage, run, prompt, began) for prompt in run.prompts)))


async def _ask(client: AsyncOmniClient, entry: str, run: Run, prompt: str, began: float) -> Answer:
    answer = Answer()
    sampling = {entry: {"max_tokens": run.tokens, "ignore_eos": True, "temperature": 0.0}}
    modalities = ["text", "audio"] if run.speech else ["text"]
    events = client.generate(chat=user(prompt), sampling=sampling, modalities=modalities)
    async for event in events:
        if not answer.first_s and (event.data if isinstance(event, AudioChunk) else _text(event, run)):
            answer.first_s = time.perf_counter() - began
            if run.leave:
                await events.aclose()
                break
        if isinstance(event, StageFinished) and event.stage == entry:
            answer.tokens = event.usage.completion_tokens
    answer.done_s = time.perf_counter() - began
    return answer


def _text(event: object, run: Run) -> str:
    return event.text if isinstance(event, TextDelta) and not run.speech else ""


@dataclass(slots=True)
class Result:
    """The answers of a run, this process's processor time, and the time until the last answer ended."""

    answers: list[Answer]
    cpu_s: float
    """Processor time of this process."""
    wall_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.wall_s = max(answer.done_s for answer in self.answers)


async def send(run: Run) -> Result:
    """Send a run's requests. Returns their answers, and this process's processor time."""
    began = time.process_time()
    answers = await (send_grpc if run.kind == GRPC else send_http)(run)
    return Result(answers, time.process_time() - began)


def main() -> None:
    """Send the requests of each line of stdin, and print its result."""
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            result = runner.run(send(Run(**json.loads(line))))
            print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
