"""In hundreds of faults, calls are retried only before Accepted, and no request ever runs twice.

The peer is a real gRPC server that breaks calls at random, behind proxies that cut connections, so an Accepted message
may be lost. The peer counts a run when a stage would start the request: when End arrives, after its Accepted.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_status import rpc_status

from omni_proto.client import AsyncOmniClient, OmniRequestError
from omni_proto.rpc.options import server_options
from omni_proto.stage.v1 import events_pb2, stage_service_pb2 as pb, stage_service_pb2_grpc
from support.machine.tcp_proxy import TcpProxy
from support.processes.polling import PATIENCE_S
from support.stages.scripted_stages import EDGE_A, Kit, ScriptedComponent

AT_ONCE, CHANNELS = 40, 8
many_faults = pytest.mark.parametrize("faults", [400, pytest.param(1_000, marks=pytest.mark.full)])
BEFORE, AFTER = ("unavailable", "exhausted", "internal", "cut"), ("unavailable late", "exhausted late", "cut late")


class FaultyPeer(stage_service_pb2_grpc.StageServiceServicer):
    """Breaks about two of three calls, before Accepted or after End."""

    def __init__(self, stage: str, seed: int) -> None:
        self.stage = stage
        self.proxies: dict[str, TcpProxy] = {}
        self.faults: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self._rng = random.Random(seed)

    async def Generate(self, requests: AsyncIterator[pb.GenerateRequest], context: Any) -> None:
        metadata = dict(context.invocation_metadata())
        request_id = metadata["x-request-id"]
        fault = self._rng.choice((*BEFORE, *AFTER, *[""] * 4))
        if fault:
            self.faults[fault] += 1
        await anext(requests)
        await self._break(fault, BEFORE, request_id, context)
        self.accepted[request_id] += 1
        await context.write(pb.GenerateResponse(stage=self.stage, accepted=events_pb2.Accepted(request_id=request_id)))
        async for request in requests:
            if request.WhichOneof("message") == "end":
                self.runs[request_id] += 1
        await self._break(fault.removesuffix(" late"), BEFORE if fault in AFTER else (), request_id, context)
        finished = events_pb2.StageFinished(finish_reason=events_pb2.FINISH_REASON_STOP)
        await context.write(pb.GenerateResponse(stage=self.stage, finished=finished))

    async def _break(self, fault: str, kinds: tuple[str, ...], request_id: str, context: Any) -> None:
        if fault not in kinds:
            return
        if fault == "cut":
            # All messages in flight on that connection are lost, those of other calls too.
            proxies = list(self.proxies.values())
            proxies[hash(request_id) % len(proxies)].cut()
            return
        code = {"unavailable": 14, "exhausted": 8, "internal": 13}[fault]
        status = status_pb2.Status(code=code, message=fault)
        if fault != "internal":
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromMilliseconds(20)
            status.details.add().Pack(retry)
        status.details.add().Pack(
            error_details_pb2.ErrorInfo(domain="omnipipeline.io", reason="NOT_READY", metadata={"stage": self.stage})
        )
        await context.abort_with_status(rpc_status.to_status(status))


@asynccontextmanager
async def serving(peer: FaultyPeer) -> AsyncIterator[str]:
    server = grpc.aio.server(options=server_options())
    stage_service_pb2_grpc.add_StageServiceServicer_to_server(peer, server)
    health = HealthServicer()
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def check(peer: FaultyPeer, outcomes: dict[str, str], faults: int) -> None:
    assert sum(peer.faults.values()) >= faults
    assert set(peer.faults) == {*BEFORE, *AFTER}
    assert max(peer.runs.values()) == 1, "a request ran twice"
    codes = Counter(outcomes.values())
    assert codes["OK"] > len(outcomes) / 4
    assert set(codes) <= {"OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL"}
    # A request that the client saw succeed ran exactly once.
    assert all(peer.runs[request_id] == 1 for request_id, code in outcomes.items() if code == "OK")


async def run_until_enough(peer: FaultyPeer, clients: list[AsyncOmniClient], faults: int) -> dict[str, str]:
    """Sends requests until the peer has made enough faults. Returns the status code of each request id.

    The hard case must be among them: an Accepted message that was lost.
    """
    outcomes: dict[str, str] = {}

    async def worker(number: int) -> None:
        client, count = clients[number % len(clients)], 0
        while sum(peer.faults.values()) < faults or max(peer.accepted.values(), default=0) < 2:
            assert sum(peer.faults.values()) < 20 * faults, "no Accepted message is lost"
            request_id, count = f"{number}-{count}", count + 1
            try:
                await client.run(raw_text="hello", request_id=request_id, timeout=PATIENCE_S)
                outcomes[request_id] = "OK"
            except OmniRequestError as error:
                outcomes[request_id] = error.code.name

    await asyncio.gather(*(worker(number) for number in range(AT_ONCE)))
    return outcomes


@many_faults
async def test_the_client_never_makes_a_request_run_twice(faults: int) -> None:
    async with AsyncExitStack() as stack:
        peer = FaultyPeer("thinker", seed=1)
        target = await stack.enter_async_context(serving(peer))
        clients = []
        for number in range(CHANNELS):
            peer.proxies[str(number)] = stack.enter_context(TcpProxy(target))
            clients.append(await stack.enter_async_context(AsyncOmniClient(peer.proxies[str(number)].target)))
        check(peer, await run_until_enough(peer, clients, faults), faults)


@many_faults
async def test_a_stage_never_makes_the_stage_below_run_twice(faults: int) -> None:
    async with AsyncExitStack() as stack:
        peer = FaultyPeer("talker", seed=2)
        target = await stack.enter_async_context(serving(peer))
        clients, entries = [], []
        for number in range(CHANNELS):
            proxy = peer.proxies[str(number)] = stack.enter_context(TcpProxy(target))
            edge = Kit.edge("talker", proxy.target, ["talker"])
            entry = await Kit(stack).serve(downstream=[edge], component=ScriptedComponent(output_schema=EDGE_A))
            entries.append(entry)
            clients.append(await stack.enter_async_context(AsyncOmniClient(entry.target)))
        outcomes = await run_until_enough(peer, clients, faults)
        check(peer, outcomes, faults)
        # The entry accepts each request before the faults below it, so its own engine runs once per request.
        assert sum(len(entry.engine.requests) for entry in entries) == len(outcomes)
