"""Requests for a model that sleeps: held within bounds, released when it serves, and told about what does not start."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from omni_cli.local.ports import pick_ports
from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.settings import GatewaySettings
from support.peers.answering_entry import WORDS, serve_entry
from support.peers.gateways import serve_gateway
from support.processes.polling import PATIENCE_S, wait_until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
QUICK = {"keepAliveSeconds": 0.05}


class Sleeper:
    """A pipeline whose entry stage starts only when `serve` is called, once it was woken."""

    def __init__(self) -> None:
        (port,) = pick_ports(1)
        self.port = port
        self.woken = threading.Event()
        self.wakes = 0
        self._served = ServedPipeline("m", f"grpc://127.0.0.1:{port}", scale_target="m-entry", asleep=True)
        self._stack = contextlib.ExitStack()

    def list_pipelines(self) -> Sequence[ServedPipeline]:
        return (self._served,)

    def is_synced(self) -> bool:
        return True

    async def wake(self, pipeline: ServedPipeline) -> None:
        self.wakes += 1
        self._served = replace(self._served, asleep=False, waking=True)
        self.woken.set()

    def say(self, **fields: bool) -> None:
        """What the status says from now on."""
        self._served = replace(self._served, **fields)

    def start_entry(self) -> None:
        assert self.woken.wait(PATIENCE_S)
        self._stack.enter_context(serve_entry(port=self.port))

    def stop_entry(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def sleeping(**settings: Any) -> Iterator[tuple[Sleeper, httpx.Client]]:
    sleeper = Sleeper()
    given = GatewaySettings.model_validate({**QUICK, **settings})
    with serve_gateway(source=sleeper, settings=given) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        yield sleeper, client
    sleeper.stop_entry()


def ask(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json={**CHAT, **fields})


def wait_held(client: httpx.Client, count: int) -> None:
    wait_until(lambda: f"omni_gateway_held_requests {count}.0" in client.get("/metrics").text)


def test_requests_wait_and_one_wake_serves_all() -> None:
    with sleeping() as (sleeper, client), ThreadPoolExecutor(8) as pool:
        assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["m"]
        asked = [pool.submit(ask, client) for _ in range(6)]
        speech = pool.submit(client.post, "/v1/audio/speech", json={"model": "m", "input": "Hello", "voice": "Ethan"})
        wait_held(client, 7)
        assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["m"], "while it wakes"
        assert client.get("/v1/models/m").status_code == 200, "a look at a model neither wakes it nor waits"
        sleeper.start_entry()
        sleeper.say(waking=False)
        answers = [one.result() for one in asked]
        assert {one.status_code for one in answers} == {200}
        assert {one.json()["choices"][0]["message"]["content"] for one in answers} == {"".join(WORDS)}
        assert speech.result().status_code == 200
        assert sleeper.wakes == 1
        wait_held(client, 0)


@pytest.mark.parametrize("path", ["chat", "speech"])
def test_a_stream_is_kept_alive_while_it_waits(path: str) -> None:
    body: dict[str, Any] = {**CHAT, "stream": True}
    if path == "speech":
        body = {"model": "m", "input": "Hello", "voice": "Ethan", "stream_format": "sse"}
    with sleeping() as (sleeper, client):
        url = "/v1/chat/completions" if path == "chat" else "/v1/audio/speech"
        with client.stream("POST", url, json=body) as response:
            assert response.status_code == 200
            lines = response.iter_lines()
            comments = 0
            while comments < 3:  # before any pod is there
                comments += next(lines).startswith(":")
            sleeper.start_entry()
            sleeper.say(waking=False)
            rest = list(lines)
    if path == "chat":
        assert rest[-2] == "data: [DONE]"
    else:
        assert "speech.audio.done" in rest[-2]
    assert not any('"error"' in line for line in rest)


def test_a_pod_that_is_ready_but_does_not_answer_yet() -> None:
    with sleeping() as (sleeper, client), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, client)
        assert sleeper.woken.wait(PATIENCE_S)
        sleeper.say(waking=False)
        time.sleep(0.3)  # the gateway meets a refused connection
        sleeper.start_entry()
        assert asked.result().status_code == 200


def test_a_pipeline_that_falls_asleep_under_a_request() -> None:
    """The status says that it serves, but its last pod is gone: the request is held, and wakes it."""
    with sleeping() as (sleeper, client), ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, client)
        sleeper.start_entry()
        sleeper.say(waking=False)
        assert first.result().status_code == 200
        sleeper.stop_entry()
        sleeper.woken.clear()
        asked = pool.submit(ask, client)
        wait_held(client, 1)
        sleeper.say(asleep=True)
        sleeper.start_entry()
        sleeper.say(waking=False)
        assert asked.result().status_code == 200
        assert sleeper.wakes == 2


def test_more_than_may_be_held_are_refused() -> None:
    with sleeping(sleep={"maxHeld": 2}) as (sleeper, client), ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, client) for _ in range(2)]
        wait_held(client, 2)
        full = ask(client)
        assert (full.status_code, full.headers["retry-after"]) == (503, "5")
        sleeper.start_entry()
        sleeper.say(waking=False)
        assert [one.result().status_code for one in asked] == [200, 200]


def test_what_does_not_start_in_time_is_refused() -> None:
    with sleeping(sleep={"heldSeconds": 0.5}) as (_, client):
        late = ask(client)
        assert late.status_code == 503
        assert "did not start within" in late.json()["error"]["message"]
        with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            assert "did not start within" in "".join(response.iter_lines())
        wait_held(client, 0)


def test_one_client_does_not_take_all_places() -> None:
    with sleeping(sleep={"maxHeldPerKey": 1}) as (sleeper, client), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, client)
        wait_held(client, 1)
        assert ask(client).status_code == 429
        sleeper.start_entry()
        sleeper.say(waking=False)
        assert asked.result().status_code == 200


def test_a_client_that_leaves_frees_its_place() -> None:
    with sleeping() as (sleeper, client):
        body = json.dumps(CHAT).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as leaver:
            leaver.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + body)
            wait_held(client, 1)
        assert sleeper.woken.is_set()
        wait_held(client, 0)
