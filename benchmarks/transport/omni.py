"""Our own transport as a side: the stage server's writer, codec, serializers, options and reassembly, on uvloop.

A lane is one open Generate call, like an edge between two stages. The EdgeWriter cuts a tensor into chunks. The
EdgeAssembler checks the chunks, including that all values are finite, and joins them. The answer is one event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import numpy as np
import torch
import uvloop

from benchmarks.transport.lanes import BULK_LEAD_S, PAUSE_S, Client
from benchmarks.transport.payload import ROW_BYTES, ROW_ELEMENTS, SCHEMA, SPEC
from omni_proto.rpc.channels import open_aio_channel
from omni_proto.rpc.options import channel_options, server_options
from omni_proto.stage.v1 import events_pb2, stage_service_pb2
from omni_proto.tensors import EdgeAssembler, TensorChunkView, header_for
from omni_stage.exchange import to_torch
from omni_stage.service.edges.output import EdgeWriter
from omni_stage.service.request.reading import WireMessage, deserialize_request
from omni_stage.service.wire import GENERATE, SERVICE_NAME, serialize_request

MAX_ROWS = 1 << 14
"""Largest number of rows that the edge announces. As in a request, no tensor has as many."""
_ACCEPTED = stage_service_pb2.GenerateResponse(stage="talker", accepted=events_pb2.Accepted(request_id="bench"))


def serve(announce: Callable[[int], None]) -> None:
    """Receive tensors on every call, and answer each tensor with one event."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(announce))


async def _serve(announce: Callable[[int], None]) -> None:
    server = grpc.aio.server(options=server_options())
    handler = grpc.stream_stream_rpc_method_handler(
        _receive,
        request_deserializer=deserialize_request,
        response_serializer=stage_service_pb2.GenerateResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, {GENERATE: handler}),))
    announce(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await server.wait_for_termination()


async def _receive(messages: AsyncIterator[WireMessage], context: Any) -> None:
    assembler = _assembler()
    async for message in messages:
        if not isinstance(message, TensorChunkView):
            raise TypeError("not a tensor chunk")
        assembler.add(message)
        if assembler.complete:
            to_torch(assembler.finish())
            await context.write(_ACCEPTED)
            assembler = _assembler()


def _assembler() -> EdgeAssembler:
    return EdgeAssembler(SCHEMA, [header_for(SPEC, MAX_ROWS)])


class _Lane:
    def __init__(self, call: Any) -> None:
        self._call = call

    async def post(self, tensor: torch.Tensor) -> None:
        for message in EdgeWriter(SCHEMA).encode([{"x": tensor}], last=True):
            await self._call.write(message)

    async def wait(self) -> None:
        await self._call.read()

    async def round_trip(self, tensor: torch.Tensor) -> float:
        start = time.perf_counter()
        await self.post(tensor)
        await self.wait()
        return time.perf_counter() - start


class _AsyncClient:
    def __init__(self, port: int) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._runner.run(self._connect(port))

    async def _connect(self, port: int) -> None:
        channel = open_aio_channel(f"127.0.0.1:{port}", options=_options())
        method = channel.stream_stream(
            f"/{SERVICE_NAME}/{GENERATE}",
            request_serializer=serialize_request,
            response_deserializer=stage_service_pb2.GenerateResponse.FromString,
        )
        self._first, self._second = _Lane(method()), _Lane(method())

    def transfers(self, data: np.ndarray, count: int) -> list[float]:
        async def run() -> list[float]:
            tensor, lane = _to_tensor(data), self._first
            start = time.perf_counter()
            for _ in range(count):
                await lane.post(tensor)
            for _ in range(count):
                await lane.wait()
            return [(time.perf_counter() - start) / count]

        return self._runner.run(run())

    def round_trips(self, row: np.ndarray, count: int, bulk: np.ndarray | None) -> list[float]:
        return self._runner.run(self._round_trips(_to_tensor(row), count, None if bulk is None else _to_tensor(bulk)))

    async def _round_trips(self, row: torch.Tensor, count: int, bulk: torch.Tensor | None) -> list[float]:
        if bulk is None:
            return [await self._first.round_trip(row) for _ in range(count)]
        stopping = False

        async def send_bulk() -> None:
            while not stopping:
                await self._second.round_trip(bulk)

        sender = asyncio.create_task(send_bulk())
        await asyncio.sleep(BULK_LEAD_S)
        seconds = []
        for _ in range(count):
            seconds.append(await self._first.round_trip(row))
            await asyncio.sleep(PAUSE_S)
        stopping = True
        await sender
        return seconds


def connect(port: int) -> Client:
    """Returns a client with one channel for all lanes."""
    return _AsyncClient(port)


def _to_tensor(data: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(data).view(torch.bfloat16).reshape(len(data) // ROW_BYTES, ROW_ELEMENTS)


def _options() -> list[tuple[str, int | str]]:
    """Returns the stages' channel options without their health check, because this server does not answer it."""
    return [
        option for option in channel_options() if option[0] not in ("grpc.service_config", "grpc.enable_http_proxy")
    ] + [("grpc.enable_http_proxy", 0)]
