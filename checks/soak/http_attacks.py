"""Clients that attack the gateway, each a row of ATTACKS, and the latency of /health and of chats meanwhile.

    PYTHONPATH=tests:. python -m checks.soak.http_attacks http://127.0.0.1:8000 --seconds 10 [--only NAME]

`python -m checks.soak.http_attacks --worker HOST PORT NAME SECONDS` runs one attack in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from checks.soak.hostile_bodies import BODIES, CHAT, MEBI, request
from tools.json_text import format_json

HEALTHY_S: Final = 0.5
"""/health answers within this time under each attack."""
SLOWER: Final = 2.0
"""How much slower the p95 of well-behaved clients may become."""
ALONE: Final = "none"
WAIT_S: Final = 0.05
SMUGGLED: Final = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
OFFER: Final = b"connection: upgrade\r\nupgrade: h2c\r\n"
Attack = Callable[[str, int, float], Awaitable[None]]
"""Attacks a host and port until a time of time.monotonic."""


async def exchange(host: str, port: int, data: bytes, within_s: float = 60, source: str | None = None) -> bytes:
    """Sends bytes on a connection of their own. Returns the beginning of the answer; empty if there is none.

    `source`: the address to call from; None lets the system choose.
    """
    writer = None
    try:
        async with asyncio.timeout(within_s):
            local = None if source is None else (source, 0)
            reader, writer = await asyncio.open_connection(host, port, local_addr=local)
            writer.write(data)
            await writer.drain()
            return await reader.read(4096)
    except (OSError, TimeoutError):
        return b""
    finally:
        if writer is not None:
            writer.transport.abort()


def send_bodies(body: bytes, callers: int = 8) -> Attack:
    """Returns an attack in which several callers send the same body again and again."""

    async def attack(host: str, port: int, until: float) -> None:
        async def one() -> None:
            path = b"/v1/chat/completions"
            while time.monotonic() < until:
                await exchange(host, port, request(body, path=path))
                path = b"/v1/audio/speech" if path.endswith(b"completions") else b"/v1/chat/completions"

        await asyncio.gather(*(one() for _ in range(callers)))

    return attack


def send_made(make: Callable[[], bytes]) -> Attack:
    """Returns send_bodies of a body that is made now."""
    return send_bodies(make())


def hoard(data: bytes, count: int, *, then: bytes = b"", every_s: float = 5.0) -> Attack:
    """Returns an attack that holds many connections, on each of which it has sent the same bytes."""

    async def attack(host: str, port: int, until: float) -> None:
        held: list[asyncio.StreamWriter] = []
        try:
            while time.monotonic() < until:
                for _ in range(count):
                    with contextlib.suppress(OSError, TimeoutError):
                        async with asyncio.timeout(5):
                            _, writer = await asyncio.open_connection(host, port, limit=1024)
                        writer.write(data)
                        held.append(writer)
                while held and (held[0].transport.is_closing() or len(held) > 2 * count):
                    held.pop(0).transport.abort()
                for writer in held:
                    writer.write(then)
                await asyncio.sleep(max(0.0, min(every_s, until - time.monotonic())))
        finally:
            for writer in held:
                writer.transport.abort()

    return attack


def smuggle() -> Attack:
    """Returns an attack with offers of other protocols and bad framing, cut at each place."""
    before = b"GET /health HTTP/1.1\r\nhost: x\r\n"
    sent = [
        request(SMUGGLED, OFFER) + SMUGGLED,
        before + b"\r\n" + request(SMUGGLED, OFFER) + SMUGGLED,
        b"CONNECT /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" + SMUGGLED,
        before + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED,
        before + b"\r\n" + b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nx\r\n" + SMUGGLED,
    ]

    async def attack(host: str, port: int, until: float) -> None:
        async def one(number: int) -> None:
            while time.monotonic() < until:
                data = sent[number % len(sent)]
                cut = number * 7 % len(data)
                number += 1
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(10):
                        _, writer = await asyncio.open_connection(host, port)
                        writer.write(data[:cut])
                        await asyncio.sleep(0.002)
                        writer.write(data[cut:])
                        await writer.drain()
                        await asyncio.sleep(0.02)
                        writer.transport.abort()

        await asyncio.gather(*(one(number) for number in range(8)))

    return attack


def flood(frames: bytes, callers: int = 8) -> Attack:
    """Returns an attack in which several sessions send the same frames of a WebSocket again and again."""

    async def attack(host: str, port: int, until: float) -> None:
        async def one() -> None:
            while time.monotonic() < until:
                writer = None
                with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                    async with asyncio.timeout_at(asyncio.get_running_loop().time() + until - time.monotonic()):
                        reader, writer = await asyncio.open_connection(host, port)
                        writer.write(HANDSHAKE)
                        await reader.readuntil(b"\r\n\r\n")
                        while True:
                            writer.write(frames)
                            await writer.drain()
                if writer is not None:
                    writer.transport.abort()
                await asyncio.sleep(WAIT_S)

        await asyncio.gather(*(one() for _ in range(callers)))

    return attack


HANDSHAKE: Final = (
    b"GET /v1/realtime?model=m HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
MASK: Final = b"\0" * 4
FORM: Final = b"multipart/form-data; boundary=" + b'"' + b";" * 60_000
CHUNKS: Final = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM: Final = CHAT + b'"stream":true,"max_tokens":2000,"ignore_eos":true}'


ATTACKS: Final[Mapping[str, Callable[[], Attack]]] = {
    "smuggling": smuggle,
    "half bodies": lambda: hoard(request(b"{", length=100), 1100),
    "large half bodies": lambda: hoard(request(b"x" * (40 * MEBI), length=45 * MEBI), 9, every_s=2),
    "half headers": lambda: hoard(b"POST / HTTP/1.1\r\nhost: x\r\nx-half: ", 1100),
    "idle connections": lambda: hoard(b"", 1100),
    "answers that nobody reads": lambda: hoard(request(STREAM), 150),
    "requests in a row": lambda: hoard(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" * 5000, 20, every_s=0.2),
    "many lines": lambda: hoard(b"GET /health HTTP/1.1\r\n" + b"a:\r\n" * 16_000 + b"\r\n", 20, every_s=0.2),
    "small chunks": lambda: hoard(CHUNKS + b"1\r\na\r\n" * 400_000, 10, every_s=1),
    "empty messages": lambda: flood((b"\x81\x80" + MASK) * 20_000),
    "fragments of a byte": lambda: flood(b"\x01\x81" + MASK + b"a" + (b"\x00\x81" + MASK + b"a") * 20_000),
    "pings": lambda: flood((b"\x89\xfd" + MASK + b"p" * 125) * 2000),
    "a long content-type": lambda: hoard(
        b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: x\r\ncontent-type: %b\r\ncontent-length: 1\r\n\r\nx" % FORM,
        20,
        every_s=0.2,
    ),
    **{f"body: {name}": partial(send_made, make) for name, make in BODIES.items()},
}
"""Makes the attacks, by name. Add a row for a further one."""


WELL_BEHAVED: Final = "127.0.0.2"
"""Address of the well-behaved clients, which share no address with the attackers. It answers for Linux."""
HEALTH: Final = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
ORDINARY: Final = request(CHAT + b'"max_tokens":2}', b"connection: close\r\n")


async def watch(host: str, port: int, asked: bytes, stop: asyncio.Event) -> list[float]:
    """Sends a request on new connections until `stop` is set. Returns the seconds of each answer, in order of size;
    infinite if it is not 200."""
    seconds = []
    while not stop.is_set():
        began = time.monotonic()
        answer = await exchange(host, port, asked, source=WELL_BEHAVED)
        seconds.append(time.monotonic() - began if answer.startswith(b"HTTP/1.1 200") else math.inf)
        await asyncio.sleep(WAIT_S)
    return sorted(seconds)


def judge(report: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Returns what failed, and what was too slow, in a report of `measure`."""
    problems, slow = [], []
    alone = report[ALONE].get("chat", {}).get("p95_s", math.inf)
    for name, one in report.items():
        if one["health"]["max_s"] > HEALTHY_S:
            slow.append(
                f"gateway, {name}: /health took {one['health']['max_s']:g} s, at most {HEALTHY_S:g} s are right"
            )
        chat = one.get("chat")
        if chat and math.isinf(chat["max_s"]):
            problems.append(f"gateway, {name}: a chat of a well-behaved client failed")
        elif chat and chat["p95_s"] > SLOWER * alone:
            slow.append(f"gateway, {name}: p95 of chats {chat['p95_s']:.3f} s, alone {alone:.3f} s")
    return problems, slow


@contextlib.asynccontextmanager
async def attacking(host: str, port: int, name: str, seconds: float) -> AsyncIterator[None]:
    """Runs one attack in a process of its own inside the block, which begins when the attack begins."""
    command = [sys.executable, "-m", "checks.soak.http_attacks", "--worker", host, str(port), name, str(seconds)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        if process.stdout is not None:
            await asyncio.wait_for(process.stdout.readline(), 120)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def measure(url: str, seconds: float, only: str = "", *, chats: bool = False) -> dict[str, dict[str, Any]]:
    """Runs each attack whose name contains `only`. Returns the latency of /health under each, in seconds, and of chats
    of the model `m` if it is served."""
    found = urlsplit(url)
    host, port = found.hostname or "127.0.0.1", found.port or 80
    asked = {"health": HEALTH, **({"chat": ORDINARY} if chats else {})}
    report = {}
    for name in [ALONE, *(name for name in ATTACKS if only in name)]:
        stop = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            if name != ALONE:
                await stack.enter_async_context(attacking(host, port, name, seconds))
            watches = {kind: asyncio.create_task(watch(host, port, data, stop)) for kind, data in asked.items()}
            await asyncio.sleep(seconds)
        stop.set()
        report[name] = {kind: summarize(await task) for kind, task in watches.items()}
        sys.stderr.write(f"{name:40s} {report[name]}\n")
    return report


def summarize(times: Sequence[float]) -> dict[str, float]:
    """Returns figures of sorted times."""
    found = {"median_s": times[len(times) // 2], "p95_s": times[int(len(times) * 0.95)], "max_s": times[-1]}
    return {"asked": len(times), **{name: round(value, 3) for name, value in found.items()}}


async def run(attack: Attack, host: str, port: int, until: float) -> None:
    await attack(host, port, until)


def work(host: str, port: str, name: str, seconds: str) -> None:
    """Runs one attack, after a line on stdout."""
    # SCHED_IDLE: the attackers' own work only uses CPU time that the gateway leaves over.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    attack = ATTACKS[name]()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    asyncio.run(run(attack, host, int(port), time.monotonic() + float(seconds)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", nargs=4)
    args = parser.parse_args()
    if args.worker:
        work(*args.worker)
        return 0
    report = asyncio.run(measure(args.url, args.seconds, args.only))
    text = format_json(report)
    sys.stdout.write(text)
    if args.json:
        args.json.write_text(text, encoding="utf-8")
    problems, slow = judge(report)
    return 1 if problems or slow else 0


if __name__ == "__main__":
    sys.exit(main())
