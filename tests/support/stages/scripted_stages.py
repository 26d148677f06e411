"""Stage servers under test with a scripted engine instead of a model.

Everything else is the product's own: ports, gRPC, codec, admission, downstream calls and metrics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import torch
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from omni_proto.pipeline.components import EngineKind
from omni_proto.rpc.channels import open_aio_channel
from omni_proto.rpc.status import StatusKeeper
from omni_proto.stage.v1 import stage_service_pb2 as pb, stage_service_pb2_grpc
from omni_proto.stage_config import DownstreamStage, EdgeMode, Modality, SamplingDefaults, StageConfig
from omni_proto.tensors import TensorSchema, TensorSpec
from omni_stage.models.component import FinishReason, StageRequest, StageStep
from omni_stage.service.server.stage_server import StageServer
from support.processes.polling import PATIENCE_S, until
from support.stages.scripted_component import Script, ScriptedComponent
from support.stages.scripted_engine import ScriptedEngine

EDGE_A = TensorSchema("test/a2b", 1, (TensorSpec("x", "bfloat16", (8,)), TensorSpec("ids", "int64")))
EDGE_B = TensorSchema("test/b2c", 1, (TensorSpec("codes", "int64"),))


@dataclass
class Stage:
    """A running stage server with its engine."""

    server: StageServer
    engine: ScriptedEngine
    registry: CollectorRegistry
    channel: grpc.aio.Channel
    stub: Any

    @property
    def target(self) -> str:
        assert self.server.ports
        return f"127.0.0.1:{self.server.ports.grpc}"

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    async def wait_for_metric(self, name: str, value: float, **labels: str) -> None:
        """Waits until a sample has that value. A server counts a call only after the client has received the status."""
        await until(lambda: self.metric(name, **labels) == value)


@dataclass
class Answer:
    """The responses of a call, and the status that it ended with."""

    responses: list[pb.GenerateResponse]
    code: grpc.StatusCode
    message: str
    status: status_pb2.Status | None

    @property
    def info(self) -> error_details_pb2.ErrorInfo:
        assert self.status is not None
        return self.detail(error_details_pb2.ErrorInfo)

    def detail(self, kind: Any) -> Any:
        message = kind()
        assert self.status is not None
        assert any(item.Is(kind.DESCRIPTOR) and item.Unpack(message) for item in self.status.details)
        return message

    def of(self, kind: str, stage: str | None = None) -> list[Any]:
        return [
            getattr(r, kind)
            for r in self.responses
            if r.WhichOneof("message") == kind and (stage is None or r.stage == stage)
        ]

    @property
    def kinds(self) -> list[tuple[str, str]]:
        return [(r.stage, r.WhichOneof("message")) for r in self.responses]

    @property
    def text(self) -> str:
        return "".join(item.text for item in self.of("text"))


def start(text: str = "hello", **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(start=pb.Start(text=text, **fields))


END = pb.GenerateRequest(end=pb.End())


async def ask(
    stage: Any, messages: Iterable[Any] | None = None, *, timeout_s: float | None = PATIENCE_S, metadata: Any = None
) -> Answer:
    """Sends messages through a plain generated stub. Returns the answer."""
    call = stage.stub.Generate(
        iter(messages if messages is not None else [start(), END]), timeout=timeout_s, metadata=metadata
    )
    return await collect(call)


async def collect(call: Any) -> Answer:
    """Returns all responses of a call, and its real final status (see StatusKeeper)."""
    responses: list[pb.GenerateResponse] = []
    keeper = StatusKeeper(call)
    try:
        async for response in call:
            responses.append(response)
    except grpc.aio.AioRpcError as caught:
        error = await keeper.unmask(caught)
        if error is None:
            return Answer(responses, grpc.StatusCode.OK, "", None)
        status = None
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                status = status_pb2.Status.FromString(value)
        return Answer(responses, error.code(), error.details() or "", status)
    return Answer(responses, await call.code(), "", None)


# Scripts ------------------------------------


def rows(count: int, offset: int = 0) -> torch.Tensor:
    return (torch.arange(count * 8).reshape(count, 8) + offset * 8).to(torch.bfloat16)


async def say_hello(request: StageRequest) -> AsyncIterator[StageStep]:
    """Yields three prompt tokens, two pieces of text, and rows if the request wants tensors."""

    def tensors(count: int, offset: int) -> dict[str, torch.Tensor]:
        if not request.want_tensors:
            return {}
        return {"x": rows(count, offset), "ids": torch.arange(offset, offset + count)}

    yield StageStep(
        text="Hel", token_ids=[7], prompt_token_ids=[1, 2, 3], tensors=tensors(3, 0), scheduled_ns=time.monotonic_ns()
    )
    await asyncio.sleep(0)
    yield StageStep(text="lo", token_ids=[8], tensors=tensors(1, 3))
    yield StageStep(finish_reason=FinishReason.STOP, stop_reason="2", tensors=tensors(1, 4))


async def speak_codes(request: StageRequest) -> AsyncIterator[StageStep]:
    count = len(request.source.tensors["x"])  # type: ignore[union-attr]
    for number in range(count):
        yield StageStep(token_ids=[number], tensors={"codes": torch.tensor([number])} if request.want_tensors else {})
    yield StageStep(finish_reason=FinishReason.LENGTH)


async def make_audio(request: StageRequest) -> AsyncIterator[StageStep]:
    codes = request.source.tensors["codes"]  # type: ignore[union-attr]
    audio = torch.linspace(-1.5, 1.5, 6000 * len(codes))
    yield StageStep(audio=audio, finish_reason=FinishReason.DIFFUSION_DONE)


async def wait_forever(request: StageRequest) -> AsyncIterator[StageStep]:
    yield StageStep(text="so far", token_ids=[1], prompt_token_ids=[1])
    await asyncio.Event().wait()


def failing(error: Exception, *, after: int = 1) -> Script:
    async def script(request: StageRequest) -> AsyncIterator[StageStep]:
        for _ in range(after):
            yield StageStep(text="so far", token_ids=[1], prompt_token_ids=[1])
        raise error

    return script


# Servers ------------------------------------


class Kit:
    """Starts stage servers, which `stack` stops after the test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def serve(
        self,
        script: Script = say_hello,
        *,
        stage: str = "thinker",
        component: ScriptedComponent | None = None,
        max_model_len: int = 64,
        build_engine: Callable[[StageConfig], Any] | None = None,
        **config: Any,
    ) -> Stage:
        """Starts a stage. `build_engine` makes its engine, in place of a scripted one."""
        settings = StageConfig.model_validate(
            {
                "pipeline": "test",
                "stage": stage,
                "component": "test/stage",
                "model": {"path": "/model"},
                "outputs": ["Text"],
                "listen": {"host": "127.0.0.1", "grpcPort": 0, "healthPort": 0, "metricsPort": 0},
                **config,
            }
        )
        engine: Any = (
            ScriptedEngine(component or ScriptedComponent(), script, max_model_len)
            if build_engine is None
            else build_engine(settings)
        )
        registry = CollectorRegistry()
        server = StageServer(settings, registry)
        self._stack.push_async_callback(server.close)
        await server.start(lambda _: engine)
        assert server.ports
        channel = self.channel(server.ports.grpc)
        return Stage(server, engine, registry, channel, stage_service_pb2_grpc.StageServiceStub(channel))

    def channel(self, port: int) -> grpc.aio.Channel:
        channel = open_aio_channel(f"127.0.0.1:{port}", options=())
        self._stack.push_async_callback(channel.close)
        return channel

    def stub(self, port: int) -> Any:
        return stage_service_pb2_grpc.StageServiceStub(self.channel(port))

    async def chain(
        self,
        thinker: Script = say_hello,
        talker: Script = speak_codes,
        token2wav: Script = make_audio,
        *,
        via: Callable[[str, str], str] = lambda stage, target: target,
        max_model_len: int = 64,
        max_tokens: int = 16,
        mode: EdgeMode = EdgeMode.FULL,
        last_timeouts: Mapping[str, float] | None = None,
        **config: Any,
    ) -> tuple[Stage, Stage, Stage]:
        """Starts three stages, the last one first. Returns them from the entry down.

        `config` is the thinker's, `last_timeouts` are the last stage's. `mode` is that of the edge from thinker to
        talker. `via(stage, target)` returns the target that the upstream stage calls instead of `target`, such as a
        proxy.
        """
        sampling = SamplingDefaults(max_tokens=max_tokens)
        last = await self.serve(
            token2wav,
            stage="token2wav",
            outputs=["Audio"],
            input={"source": "talker"},
            timeouts=last_timeouts or {},
            component=ScriptedComponent(
                kind=EngineKind.DIFFUSION,
                input_schema=EDGE_B,
                default_sampling=SamplingDefaults(),
                voices=("Chelsie", "Ethan"),
            ),
        )
        middle = await self.serve(
            talker,
            stage="talker",
            outputs=[],
            input={"source": "thinker", "mode": mode},
            downstream=[self.edge("token2wav", via("token2wav", last.target), ["token2wav"])],
            component=ScriptedComponent(
                input_schema=EDGE_A, output_schema=EDGE_B, writes_text=False, default_sampling=sampling
            ),
            max_model_len=max_model_len,
        )
        edge = self.edge("talker", via("talker", middle.target), ["talker", "token2wav"])
        first = await self.serve(
            thinker,
            downstream=[edge.model_copy(update={"mode": mode})],
            component=ScriptedComponent(output_schema=EDGE_A, default_sampling=sampling),
            max_model_len=max_model_len,
            **config,
        )
        return first, middle, last

    @staticmethod
    def edge(stage: str, target: str, stages: list[str]) -> DownstreamStage:
        return DownstreamStage(
            stage=stage, target=target, component="test/stage", stages=stages, outputs=[Modality.AUDIO]
        )


async def check_health(port: int, service: str) -> int:
    """Returns the status of a service on this port of 127.0.0.1."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return int((await health_pb2_grpc.HealthStub(channel).Check(request, timeout=PATIENCE_S)).status)


async def begin(stage: Any, timeout_s: float | None = PATIENCE_S) -> tuple[Any, asyncio.Task[Any]]:
    """Returns a call whose request the engine has begun, and the task that collects its answer."""
    call = stage.stub.Generate(iter([start(), END]), timeout=timeout_s)
    task = asyncio.create_task(collect(call))
    await asyncio.wait_for(stage.engine.started.wait(), PATIENCE_S)
    return call, task
