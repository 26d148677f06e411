"""Requests begin one after another, the clients in turn; probes do not wait."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.http_server import turns as module
from omni_gateway.http_server.app import create_app
from omni_gateway.http_server.turns import Turns, Waiting
from omni_gateway.settings import GatewaySettings
from support.peers.sockets import serve, status_of
from support.processes.polling import PATIENCE_S, until


async def test_clients_begin_in_turn() -> None:
    turns, begun = Turns(), []
    for client in "aaaabbc":
        turns.enter(client, Waiting(lambda client=client: begun.append(client), pytest.fail))  # type: ignore[misc]
    assert begun == ["a"]
    await until(lambda: len(begun) == 7)
    assert "".join(begun) == "aabcaba"
    await until(lambda: not turns._pacing)
    turns.enter("d", Waiting(lambda: begun.append("d"), pytest.fail))
    assert begun[-1] == "d", "it does not wait if no other one has just begun"


async def test_a_slow_turn_of_the_loop_begins_what_is_due() -> None:
    """While answers stream, a turn takes longer than the pause between two beginnings."""
    turns, begun, looks = Turns(), [], [1]
    for number in range(2 * module.BURST + 1):
        turns.enter("a", Waiting(lambda number=number: begun.append(number), pytest.fail))  # type: ignore[misc]
    while len(begun) < 2 * module.BURST + 1:
        time.sleep(2 * module.BURST * module.PACE_S)  # noqa: ASYNC251 streams occupy the loop too
        await asyncio.sleep(0)
        looks.append(len(begun))
    assert begun == sorted(begun)
    assert max(now - before for before, now in itertools.pairwise(looks)) == module.BURST


async def test_the_client_with_the_most_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING", 4)
    turns, begun, dropped = Turns(), [], []
    for number, client in enumerate("aaaaabbc"):
        name = f"{client}{number}"
        turns.enter(client, Waiting(lambda name=name: begun.append(name), lambda name=name: dropped.append(name)))  # type: ignore[misc]
    assert dropped == ["a1", "a2", "b5"]
    await until(lambda: not turns._pacing)
    assert begun == ["a0", "a3", "b6", "c7", "a4"]


async def test_probes_are_answered_while_no_request_may_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACE_S", 3600.0)
    get = b"GET %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    async with serve(create_app(StaticPipelines(()), GatewaySettings())) as port:
        assert await status_of(port, get % b"/v1/models") == b"200"
        waits = asyncio.create_task(status_of(port, get % b"/v1/models"))
        for path in (b"/health", b"/ready", b"/metrics"):
            assert await asyncio.wait_for(status_of(port, get % path), PATIENCE_S) == b"200"
        assert not waits.done()
        waits.cancel()
        await asyncio.wait([waits])
