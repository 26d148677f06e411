"""A wall clock that jumps by an hour in either direction moves no deadline, timeout or watchdog.

A test moves the wall clock of the stage servers' processes, so gRPC sees the wrong time too. test_server_clock.py tests
the operator with a wrong clock. test_forbidden_calls.py lists the modules that may read the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from omni_proto.client import Accepted, AsyncOmniClient, Event, OmniRequestError, TextDelta
from support.machine.wall_clock import WallClock
from support.processes.polling import PATIENCE_S
from support.processes.stage_processes import CHEAP, StageProcess, chain_configs, pick_chain_ports

pytestmark = pytest.mark.pipeline

HOUR_S = 3600
REQUEST_S = 15
"""Long enough for a short request on a busy machine."""
SHORT: dict[str, dict[str, Any]] = {
    "thinker": {"max_tokens": 20, "top_k": 50},
    "talker": {"max_tokens": 2},
    "token2wav": {"num_inference_steps": 1},
}
LONG = SHORT | {"thinker": {"max_tokens": 4000, "top_k": 100}}


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> WallClock:
    return WallClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def stages(clock: WallClock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageProcess]:
    configs = chain_configs(pick_chain_ports(), timeouts={"request": REQUEST_S, "step": REQUEST_S})
    folder = tmp_path_factory.mktemp("stages")
    with StageProcess(list(configs.values()), folder, CHEAP, environment=clock.environment) as process:
        yield process.start()


async def ask(
    stages: StageProcess, clock: WallClock, sampling: dict[str, Any], jump_s: int, *, first_s: int = 0
) -> list[Event]:
    """Runs a request and moves the clock when its first event arrives. Returns its events.

    The wall clock is `first_s` seconds ahead when the request starts, and `jump_s` seconds ahead afterwards.
    """
    clock.set(first_s)
    events: list[Event] = []
    async with AsyncOmniClient(f"grpc://127.0.0.1:{stages.ports['thinker']['grpc']}") as client:
        async for event in client.generate(raw_text="hello", sampling=sampling, timeout=PATIENCE_S):
            if not any(isinstance(seen, TextDelta) for seen in events):
                clock.set(jump_s)
            events.append(event)
    return events


def kinds(events: list[Event]) -> dict[str, list[str]]:
    """Returns the event types of each stage, in order. Events of different stages may arrive in any order."""
    found: dict[str, list[str]] = {}
    for event in events:
        found.setdefault(getattr(event, "stage", ""), []).append(type(event).__name__)
    return found


def accepted_s(events: list[Event]) -> float:
    """Returns when the first stage accepted the request, by its own wall clock, in seconds since the epoch."""
    return next(event.accepted_unix_ns for event in events if isinstance(event, Accepted)) / 1e9


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S], ids=["ahead", "back"])
async def test_requests_do_not_see_a_clock_that_jumps(stages: StageProcess, clock: WallClock, jump_s: int) -> None:
    before = await ask(stages, clock, SHORT, jump_s)
    after = await ask(stages, clock, SHORT, 0, first_s=jump_s)
    assert kinds(after) == kinds(before)
    assert abs(accepted_s(before) - time.time()) < HOUR_S / 2
    assert abs(accepted_s(after) - time.time() - jump_s) < HOUR_S / 2, "the clock did move"
    assert stages.health("thinker", "") == stages.health("thinker", "liveness") == "SERVING"


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S], ids=["ahead", "back"])
async def test_deadlines_come_when_they_would_have(stages: StageProcess, clock: WallClock, jump_s: int) -> None:
    began = time.monotonic()
    with pytest.raises(OmniRequestError, match="DEADLINE_EXCEEDED"):
        await ask(stages, clock, LONG, jump_s)
    assert REQUEST_S - 1 < time.monotonic() - began < HOUR_S / 10
    assert stages.health("thinker", "liveness") == "SERVING"
