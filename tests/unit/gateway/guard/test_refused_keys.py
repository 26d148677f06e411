"""Requests without a valid key: a metric counts each of them. The first one is logged, then only their number in each
period.

Also tests the pseudonyms of users. If an entry stage often refuses calls with the same pseudonym, it delays its further
refusals of such calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from omni_gateway.context import Pseudonyms
from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.guard.keys import hash_key
from omni_gateway.guard.record import PERIOD_S, RefusedKeys
from omni_gateway.settings import GatewaySettings
from omni_proto.rpc.options import USER_KEY
from omni_stage.service.request.tracing import user_of
from support.peers.answering_entry import serve_entry
from support.peers.gateways import serve_gateway
from support.processes.polling import PATIENCE_S

ASKED = {"model": "omni", "messages": [{"role": "user", "content": "Hello"}]}


def test_refused_keys_are_logged_once_and_then_counted_per_period(caplog: pytest.LogCaptureFixture) -> None:
    """The first request is logged. Then each period's number of requests is logged, until a period has none."""
    waiting: list[Callable[[], None]] = []

    def later(seconds: float, function: Callable[[], None]) -> None:
        assert seconds == PERIOD_S
        waiting.append(function)

    refused = RefusedKeys(later)
    with caplog.at_level(logging.WARNING):
        assert [refused.note() for _ in range(4)] == [True, False, False, False]
        waiting.pop()()
        assert [refused.note() for _ in range(2)] == [False, False]
        waiting.pop()()
        waiting.pop()()
        assert not waiting, "a period without requests ends the counting"
        assert refused.note(), "the next one is logged again"
    assert [getattr(record, "requests", None) for record in caplog.records] == [3, 2]


def test_all_refused_keys_are_counted_and_one_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys:\n- {{name: alice, sha256: {hash_key('right')}}}\n")
    with (
        caplog.at_level(logging.INFO, "omni_gateway"),
        serve_entry() as (port, starts),
        serve_gateway(
            ServedPipeline("omni", f"grpc://127.0.0.1:{port}"), settings=GatewaySettings(keys_file=file)
        ) as url,
        httpx.Client(base_url=url, timeout=PATIENCE_S) as client,
    ):
        for _ in range(20):
            assert client.get("/v1/models", headers={"authorization": "Bearer wrong"}).status_code == 401
        assert 'omni_gateway_refused_total{code="invalid_api_key"} 20.0' in client.get("/metrics").text
        for _ in range(2):
            right = {"authorization": "Bearer right"}
            assert client.post("/v1/chat/completions", json=ASKED, headers=right).is_success
    lines = [getattr(record, "status", 0) for record in caplog.records if record.message == "request"]
    assert (lines.count(401), lines.count(200)) == (1, 2)
    assert len(starts) == 2


def test_the_entry_stage_gets_a_pseudonym_per_user() -> None:
    """The entry stage gets the same pseudonym with every request of a user."""
    with serve_entry() as (port, starts):
        with serve_gateway(ServedPipeline("omni", f"grpc://127.0.0.1:{port}")) as url:
            for _ in range(2):
                assert httpx.post(f"{url}/v1/chat/completions", json=ASKED, timeout=PATIENCE_S).is_success
        first, second = starts.users
    assert first == second == user_of([(USER_KEY, first)]) != ""


def test_pseudonyms() -> None:
    """An API key or, without one, an address identifies a user. Each gateway process makes its own pseudonyms."""
    ours, theirs = Pseudonyms(), Pseudonyms()
    names = [ours.of("alice", "10.0.0.1"), ours.of("", "10.0.0.1"), ours.of("", "10.0.0.2"), ours.of("10.0.0.1", "")]
    assert len(set(names)) == 4
    assert ours.of("alice", "10.9.9.9") == names[0], "a key is one user, whatever the address"
    assert theirs.of("alice", "10.0.0.1") != names[0]
