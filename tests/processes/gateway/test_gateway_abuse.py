"""A real gateway process serves well-behaved clients while others stop reading or send wrong keys."""

from __future__ import annotations

import base64
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from omni_gateway.guard.keys import hash_key
from support.peers.flooding_entry import ENDLESS, WORDS, serve_flood
from support.peers.gateways import GatewayProcess, run_gateway
from support.processes.polling import PATIENCE_S, wait_until

MODEL = "omni"
MIB = 1 << 20
STALLED_BYTES = MIB
"""Upper bound of the gateway's memory per stalled client: gRPC's window, one event, and the transport's buffer."""

UNSENT_BYTES = MIB // 4
"""Upper bound of the kernel's send buffer per stalled client."""


def asked(content: object = "Hello", *, stream: bool = False) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "stream": stream}


def ask(client: httpx.Client) -> None:
    """Sends a well-behaved streaming request and checks that its answer is complete."""
    answer = client.post("/v1/chat/completions", json=asked(stream=True))
    assert answer.status_code == 200, answer.text
    *events, done = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert done == "[DONE]"
    deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "".join(WORDS)


def counter(url: str, name: str) -> float:
    """Returns the sum of a counter of /metrics over its labels."""
    lines = httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}_total[ {{]", line))


def connect_stalled(url: str, content: object = ENDLESS) -> socket.socket:
    """Requests a text, an endless one by default, and reads nothing of it. Returns the socket."""
    client = socket.socket()
    # Set before connecting, so that TCP offers only this window and unread data stays with the gateway.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = url.removeprefix("http://").split(":")
    client.connect((host, int(port)))
    body = json.dumps(asked(content, stream=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    client.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + body)
    return client


def unsent_bytes(url: str) -> int:
    """Returns the bytes in the kernel's send queues of the gateway's port.

    They count as the container's memory, but not as that of any process.
    """
    port = int(url.rpartition(":")[2])
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return sum(int(row[4].partition(":")[0], 16) for row in rows if row[1].endswith(f":{port:04X}"))


def check_stalled_readers(folder: Path, count: int, well_behaved: int) -> None:
    """Checks that `honest` requests are answered while `count` clients have stopped reading.

    The gateway's memory stays within its bounds, and it disconnects all stalled clients.
    """
    with (
        serve_flood() as (port, entry),
        run_gateway(folder, f"{MODEL}=grpc://127.0.0.1:{port}", "sendSeconds: 10\n") as gateway,
        httpx.Client(base_url=gateway.url, timeout=PATIENCE_S) as client,
        ExitStack() as stack,
    ):
        ask(client)
        before = gateway.rss_bytes()
        for _ in range(count):
            stack.enter_context(connect_stalled(gateway.url))
        most, unsent = before, 0
        wait_until(lambda: entry.endless_begun == count, why=lambda: "not all readers were let in")
        # A slow machine may disconnect the readers before the last request is answered.
        for _ in range(well_behaved):
            most, unsent = max(most, gateway.rss_bytes()), max(unsent, unsent_bytes(gateway.url))
            ask(client)
        assert 0 < unsent < count * UNSENT_BYTES, f"{unsent / MIB:.0f} MiB for {count} readers"
        wait_until(lambda: entry.endless == 0, why=lambda: "stalled readers are not disconnected")
        most = max(most, gateway.rss_bytes())
        assert most - before < count * STALLED_BYTES, f"{(most - before) / MIB:.0f} MiB for {count} readers"
        wait_until(lambda: counter(gateway.url, "omni_gateway_clients_left") == count)
        ask(client)


def test_readers_that_stall_harm_nobody_and_are_left(tmp_path: Path) -> None:
    check_stalled_readers(tmp_path, 50, 10)


@pytest.mark.full
def test_two_hundred_readers_that_stall_harm_nobody_and_are_left(tmp_path: Path) -> None:
    check_stalled_readers(tmp_path, 200, 200)


def test_media_leave_the_memory_once_they_are_sent(tmp_path: Path) -> None:
    """The gateway keeps neither the body nor the video of a running request in memory."""
    video = base64.b64encode(b"\0\0\0\x20ftypisom" + bytes(20 * MIB)).decode()
    content = [
        {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{video}"}},
        {"type": "text", "text": ENDLESS},
    ]
    with serve_flood() as (port, entry), run_gateway(tmp_path, f"{MODEL}=grpc://127.0.0.1:{port}") as gateway:
        with httpx.Client(base_url=gateway.url, timeout=PATIENCE_S) as client:
            ask(client)
        before = gateway.rss_bytes()
        with connect_stalled(gateway.url, content):
            wait_until(lambda: entry.endless == 1, why=lambda: "the request does not run")
            wait_until(lambda: gateway.rss_bytes() - before < 10 * MIB, why=lambda: "the media are still in memory")


class WrongKeys:
    """Threads that send wrong keys in a loop, each as fast as its requests are refused."""

    def __init__(self, url: str) -> None:
        self.statuses: Counter[int] = Counter()
        self._url = url
        self._stop = threading.Event()

    @contextmanager
    def running(self, threads: int) -> Iterator[None]:
        """Sends wrong keys from `threads` threads while the `with` block runs."""
        started = [threading.Thread(target=self._send, args=(number,)) for number in range(threads)]
        for thread in started:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in started:
                thread.join(PATIENCE_S)

    def _send(self, number: int) -> None:
        with httpx.Client(base_url=self._url, timeout=PATIENCE_S) as client:
            turn = 0
            while not self._stop.is_set():
                turn += 1
                # Every second key is long, because keys of any length are hashed.
                wrong = f"sk-omni-{number}-{turn}" + "x" * (turn % 2 * 30_000)
                answer = client.post("/v1/chat/completions", json=asked(), headers={"authorization": f"Bearer {wrong}"})
                self.statuses[answer.status_code] += 1


def test_wrong_keys_in_a_loop_refuse_nobody_else(tmp_path: Path) -> None:
    """Requests with wrong keys do not use up the limits of a valid key."""
    keys = tmp_path / "keys.yaml"
    others = "".join(f"- {{name: other-{number}, sha256: {hash_key(str(number))}}}\n" for number in range(100))
    limits = "limits: {requestsPerMinute: 150, concurrentRequests: 1}"
    keys.write_text(f"keys:\n{others}- {{name: alice, sha256: {hash_key('right')}, {limits}}}\n")
    with (
        serve_flood() as (port, _),
        run_gateway(tmp_path, f"{MODEL}=grpc://127.0.0.1:{port}", f"keysFile: {keys}\n") as gateway,
        httpx.Client(base_url=gateway.url, timeout=PATIENCE_S, headers={"authorization": "Bearer right"}) as client,
    ):
        wrong = WrongKeys(gateway.url)
        with wrong.running(4):
            wait_until(lambda: wrong.statuses[401] > 20, why=lambda: "no wrong key is refused")
            for _ in range(50):
                ask(client)
        assert set(wrong.statuses) == {401}
        check_log(gateway, wrong)


def check_log(gateway: GatewayProcess, wrong: WrongKeys) -> None:
    """Checks that no key is in the log, and that all refused requests are counted."""
    refused = counter(gateway.url, "omni_gateway_refused")
    assert refused == wrong.statuses[401]
    log = gateway.log.read_text()
    assert "sk-omni" not in log
    assert "Bearer" not in log
