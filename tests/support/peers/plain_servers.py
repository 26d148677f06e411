"""A gRPC server on plain generated stubs that plays a script, and both of our clients to call it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from omni_proto.client import AsyncOmniClient, GenerationResult, OmniClient
from omni_proto.rpc.options import server_options
from omni_proto.stage.v1 import events_pb2, stage_service_pb2_grpc
from omni_proto.stage.v1.stage_service_pb2 import GenerateRequest, GenerateResponse, GetStageRequest, GetStageResponse

Context = Any
"""A grpc.aio.ServicerContext, which has no types."""
Script = Callable[["Call"], Awaitable[None]]


@dataclass
class Call:
    """One call, as the server receives it."""

    attempt: int
    requests: AsyncIterator[GenerateRequest]
    context: Context
    metadata: dict[str, str | bytes]

    async def accept(self) -> None:
        await self.say(accepted=events_pb2.Accepted(request_id="r", accepted_unix_ns=1))

    async def say(self, **message: Any) -> None:
        await self.context.write(GenerateResponse(stage="thinker", **message))

    async def fail(self, code: grpc.StatusCode, message: str, retry_ms: int | None = None, reason: str = "") -> None:
        status = status_pb2.Status(code=code.value[0], message=message)
        if reason:
            info = error_details_pb2.ErrorInfo(reason=reason, metadata={"stage": "talker", "request_id": "r"})
            status.details.add().Pack(info)
        if retry_ms is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromMilliseconds(retry_ms)
            status.details.add().Pack(retry)
        await self.context.abort_with_status(rpc_status.to_status(status))


@dataclass
class Stage(stage_service_pb2_grpc.StageServiceServicer):
    """A stage that plays a script."""

    script: Script
    calls: list[Call] = field(default_factory=list)
    called: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def Generate(self, requests: AsyncIterator[GenerateRequest], context: Context) -> None:
        call = Call(len(self.calls) + 1, requests, context, dict(context.invocation_metadata() or ()))
        self.calls.append(call)
        self.called.set()
        try:
            await self.script(call)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def GetStage(self, request: GetStageRequest, context: Context) -> GetStageResponse:
        return GetStageResponse(stage="thinker", component="generic/llm")


@contextlib.asynccontextmanager
async def serving(script: Script) -> AsyncIterator[tuple[Stage, str]]:
    stage = Stage(script)
    server = grpc.aio.server(options=server_options())
    stage_service_pb2_grpc.add_StageServiceServicer_to_server(stage, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield stage, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def run_async(target: str, **arguments: Any) -> GenerationResult:
    async with AsyncOmniClient(target) as client:
        return await client.run(**arguments)


async def run_blocking(target: str, **arguments: Any) -> GenerationResult:
    def run() -> GenerationResult:
        with OmniClient(target) as client:
            return client.run(**arguments)

    return await asyncio.to_thread(run)


Run = Callable[..., Awaitable[GenerationResult]]
both = pytest.mark.parametrize("run", [run_async, run_blocking], ids=["asyncio", "blocking"])


async def hello(call: Call) -> None:
    await call.accept()
    await call.say(text=events_pb2.TextDelta(text="hel"))
    await call.say(text=events_pb2.TextDelta(text="lo"))
    await call.say(finished=events_pb2.StageFinished(finish_reason=events_pb2.FINISH_REASON_STOP))
    await call.say(summary=events_pb2.Summary(request_id="r", total_ns=5))
