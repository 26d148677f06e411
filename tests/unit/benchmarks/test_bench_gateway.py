"""The gateway benchmark: its load client against a server on a real socket, and its arithmetic."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from benchmarks.gateway import text
from benchmarks.gateway.load import Run, send
from benchmarks.gateway.text import CLIENT, OURS, VLLM, Sample, cpu_rows, find_cpu_ratios, find_ratios

from support.peers.answering_entry import serve_entry

DELTAS: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}]


def chunk(delta: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"


def usage(tokens: int) -> bytes:
    # The gateway and vLLM's server write JSON without spaces, and the load client relies on that.
    return f'data: {{"choices":[],"usage":{{"completion_tokens":{tokens}}}}}\n\n'.encode()


class Server:
    """Answers each request with the given pieces, each sent as one chunk of a chunked HTTP response."""

    def __init__(self, *pieces: bytes, status: int = 200) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._pieces = pieces
        self._status = status

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        writer.write(f"HTTP/1.1 {self._status} x\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        for piece in self._pieces:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()


async def ask(server: Server, **changes: Any) -> dict[str, Any]:
    """Sends one request to `server` and returns its measured answer. `changes` overrides fields of the default Run."""
    listening = await asyncio.start_server(server, "127.0.0.1")
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        run = Run(**{"port": port, "count": 1, "tokens": 2, "prompts": ["hi"], "model": "m", **changes})
        answer = (await send(run)).answers[0]
    return {"first": answer.first_s, "done": answer.done_s, "tokens": answer.tokens, "error": answer.error}


async def test_tokens_are_the_servers_own_count_and_the_first_is_the_first_text() -> None:
    """The token count is that of the server's usage event. The first token is the first delta with text."""
    whole = b"".join([*map(chunk, DELTAS), usage(2), b"data: [DONE]\n\n"])
    # Pieces of 37 bytes, so that events are split at arbitrary bytes.
    server = Server(*(whole[start : start + 37] for start in range(0, len(whole), 37)))
    answer = await ask(server)
    assert answer["error"] == ""
    assert answer["tokens"] == 2
    assert 0 < answer["first"] < answer["done"]
    assert server.bodies[0]["stream_options"] == {"include_usage": True}
    assert server.bodies[0]["ignore_eos"] is True


async def test_an_answer_without_text_has_no_first_token() -> None:
    answer = await ask(Server(chunk(DELTAS[0]), usage(3), b"data: [DONE]\n\n"))
    assert answer["first"] == 0
    assert answer["tokens"] == 3, "tokens without text are also counted"


async def test_speech_waits_for_audio_and_may_leave_with_it() -> None:
    """For a speech request, `first` is the time of the first audio. With `leave`, the client then disconnects."""
    audio = chunk({"audio": {"id": "a", "data": "AAAA"}})
    answer = await ask(Server(chunk({"audio": {"transcript": "a"}}), audio, audio, audio), speech=True, leave=True)
    assert answer["first"] > 0
    assert answer["error"] == ""


@pytest.mark.parametrize(
    "server",
    [
        Server(b'{"error":{"message":"no"}}', status=503),
        Server(chunk(DELTAS[1]), b'data: {"error":{"message":"broke"}}\n\n'),
    ],
    ids=["refused", "broken off"],
)
async def test_a_failed_answer_is_an_error(server: Server) -> None:
    assert "error" in (await ask(server))["error"]


def test_ratios_are_of_rounds_and_servers_are_summed_without_engines() -> None:
    """The servers are compared round by round. The sum of CPU times excludes engines and the load client."""
    ours = [
        Sample(90.0, 0.2, 0.3, {"gateway": 60.0, "stage server": 40.0, "stage server's engine": 900.0, CLIENT: 5.0})
    ]
    theirs = [Sample(100.0, 0.1, 0.3, {"vLLM's API server": 120.0, "vLLM's API server's engine": 880.0, CLIENT: 5.0})]
    samples = {(OURS, 8): ours, (VLLM, 8): theirs}
    rate, first = find_ratios(samples)
    assert (rate.value, rate.at_least, rate.met) == (0.9, text.RATE_BOUND, True)
    assert (first.value, first.at_most, first.met) == (2.0, text.FIRST_BOUND, False)
    sums = {row["side"]: row["us_8_at_once"] for row in cpu_rows(samples) if row["process"] == "servers together"}
    assert sums == {OURS: 100.0, VLLM: 120.0}


async def test_the_same_load_asks_by_grpc() -> None:
    """The load client can also send its requests directly to an entry stage, by gRPC."""
    with serve_entry() as (port, starts):
        (answer,) = (await send(Run(port=port, count=1, tokens=7, prompts=["hi"], kind="grpc", speech=True))).answers
    assert answer.error == ""
    assert 0 < answer.first_s <= answer.done_s
    assert starts[0].sampling["thinker"].max_tokens == 7


def test_processor_time_counts_all_processes_but_the_client() -> None:
    def make(gateway: float, engine: float) -> Sample:
        return Sample(1, 1, 1, {"gateway": gateway, "stage server's engine": engine, CLIENT: 1000})

    samples = {(OURS, 8): [make(10, 80), make(20, 80)], (VLLM, 8): [make(0, 100), make(0, 125)]}
    (ratio,) = find_cpu_ratios(samples, "m")
    assert (ratio.name, ratio.value) == ("processor time a token x vLLM's server, m, 8 at once", 0.85)
