"""A drain lets calls in flight end, refuses new ones, and sends clients to another pod."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from omni_proto.pod_contract import ExitCode
from omni_proto.stage.v1 import stage_service_pb2_grpc
from support.machine.tcp_proxy import TcpProxy
from support.processes.polling import PATIENCE_S, until
from support.stages import scripted_stages as lab

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
REFUSED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""How a call ends if it arrives while the port is being closed. Clients retry both; gRPC itself sends CANCELLED."""


async def test_drain_lets_calls_end_and_refuses_new_ones(kit: Any) -> None:
    release = asyncio.Event()

    async def held(request: Any) -> Any:
        await release.wait()
        async for step in lab.say_hello(request):
            yield step

    stage = await kit.serve(held, timeouts={"drainNotice": 4.0})
    _, early = await lab.begin(stage)
    stop = asyncio.Event()
    serving = asyncio.create_task(stage.server.serve(stop, asyncio.Event()))
    stop.set()
    await until(lambda: not stage.server.health.ready)
    late = stage.stub.Generate(iter([lab.start(), lab.END]), timeout=PATIENCE_S)
    assert (await late.read()).WhichOneof("message") == "accepted"
    await until(lambda: stage.server.in_flight.refusing)
    assert (await lab.ask(stage)).code in REFUSED
    assert await lab.check_health(stage.server.ports.health, "readiness") == NOT_SERVING
    assert await lab.check_health(stage.server.ports.health, "liveness") == SERVING
    release.set()
    assert (await early).text == "Hello"
    while await late.read() is not grpc.aio.EOF:
        pass
    assert await late.code() is grpc.StatusCode.OK
    assert await asyncio.wait_for(serving, PATIENCE_S) is ExitCode.DRAINED


async def test_a_client_without_health_checks_reaches_another_pod_while_this_one_drains(kit: Any) -> None:
    """The client connects to the address of a Service. Its connection ends, and its next one reaches a ready pod."""
    old, new = await kit.serve(lab.wait_forever, timeouts={"drainNotice": 0}), await kit.serve()
    with TcpProxy(old.target) as service:
        async with grpc.aio.insecure_channel(service.target) as channel:
            stub = stage_service_pb2_grpc.StageServiceStub(channel)
            held = stub.Generate(iter([lab.start(), lab.END]), timeout=PATIENCE_S)
            assert (await held.read()).WhichOneof("message") == "accepted"
            service.backend = new.target
            stop, abort = asyncio.Event(), asyncio.Event()
            serving = asyncio.create_task(old.server.serve(stop, abort))
            stop.set()
            await until(lambda: old.server.in_flight.refusing)
            answer = await lab.collect(stub.Generate(iter([lab.start(), lab.END]), timeout=PATIENCE_S))
            while answer.code in REFUSED:
                answer = await lab.collect(stub.Generate(iter([lab.start(), lab.END]), timeout=PATIENCE_S))
            assert (answer.code, answer.text) == (grpc.StatusCode.OK, "Hello")
            assert not held.done(), "the call in flight continues on the old connection"
            abort.set()
            assert await asyncio.wait_for(serving, PATIENCE_S) is ExitCode.ABORTED


async def test_second_signal_aborts(kit: Any) -> None:
    stage = await kit.serve(lab.wait_forever, timeouts={"drainNotice": 0})
    _, task = await lab.begin(stage)
    stop, abort = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(stage.server.serve(stop, abort))
    stop.set()
    abort.set()
    answer = await task
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert await asyncio.wait_for(serving, PATIENCE_S) is ExitCode.ABORTED
    assert len(stage.engine.aborted) == 1
