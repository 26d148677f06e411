"""Requests begin one after another, the clients in turn; probes do not wait."""

from __future__ import annotations

import asyncio

import pytest

from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.http_server import turns as module
from omni_gateway.http_server.app import create_app
from omni_gateway.http_server.turns import Turns, Waiting
from omni_gateway.settings import GatewaySettings
from support.peers.sockets import serve, status_of
from support.processes.polling import PATIENCE_S, until


async def test_clients_begin_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as may begin in a turn of the loop begin at once, the others in the next turns."""
    monkeypatch.setattr(module, "BURST", 2)
    turns, begun = Turns(), []
    for client in "aaaaabbc":
        turns.enter(client, Waiting(lambda client=client: begun.append(client), pytest.fail))  # type: ignore[misc]
    looks = ["".join(begun)]
    while turns._begun:
        await asyncio.sleep(0)
        looks.append("".join(begun))
    assert list(dict.fromkeys(looks)) == ["aa", "aaab", "aaabca", "aaabcaba"]
    turns.enter("d", Waiting(lambda: begun.append("d"), pytest.fail))
    assert begun[-1] == "d"


async def test_the_client_with_the_most_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING", 4)
    monkeypatch.setattr(module, "BURST", 1)
    turns, begun, dropped = Turns(), [], []
    for number, client in enumerate("aaaaabbc"):
        name = f"{client}{number}"
        turns.enter(client, Waiting(lambda name=name: begun.append(name), lambda name=name: dropped.append(name)))  # type: ignore[misc]
    assert dropped == ["a1", "a2", "b5"]
    await until(lambda: not turns._begun)
    assert begun == ["a0", "a3", "b6", "c7", "a4"]


async def test_probes_are_answered_while_no_request_may_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "_next", lambda turns: None)  # this turn of the loop does not end
    monkeypatch.setattr(module, "BURST", 1)
    get = b"GET %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    async with serve(create_app(StaticPipelines(()), GatewaySettings())) as port:
        assert await status_of(port, get % b"/v1/models") == b"200"
        waits = asyncio.create_task(status_of(port, get % b"/v1/models"))
        for path in (b"/health", b"/ready", b"/metrics"):
            assert await asyncio.wait_for(status_of(port, get % path), PATIENCE_S) == b"200"
        assert not waits.done()
        waits.cancel()
        await asyncio.wait([waits])
