"""gRPC callers of a pipeline that sleeps: what they are told, whom they wake, and how the client waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import pytest

from omni_gateway.cluster.activator import Activator, find_sleeper
from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.errors import ModelNotReadyError
from omni_gateway.telemetry import GatewayMetrics
from omni_proto.client import OmniClient
from omni_proto.rpc.status import read_status, status_of_call
from support.peers.answering_entry import WORDS, serve_entry
from support.processes.polling import PATIENCE_S, wait_until

GENERATE = "/omni_proto.stage.v1.StageService/Generate"
ASLEEP = ServedPipeline("demo", "grpc://unused:1", "models", scale_target="demo-thinker", asleep=True)
OTHERS = (
    ServedPipeline("always", "grpc://unused:1", "models"),
    replace(ASLEEP, name="two", namespace="a"),
    replace(ASLEEP, name="two", namespace="b"),
)


class Source:
    """Pipelines of which one sleeps."""

    def __init__(self) -> None:
        self.served = ASLEEP
        self.woken: list[str] = []
        self.refuses = False

    def list_pipelines(self) -> Sequence[ServedPipeline]:
        return (*OTHERS, self.served)

    def is_synced(self) -> bool:
        return True

    async def wake(self, pipeline: ServedPipeline) -> None:
        self.woken.append(pipeline.qualified)
        if self.refuses:
            raise ModelNotReadyError("refused")


@contextlib.contextmanager
def serve(source: Source) -> Iterator[str]:
    """Yields the address of an activator, which runs in a thread."""
    activator, ready, ended = Activator(source, "127.0.0.1:0"), threading.Event(), threading.Event()

    async def run() -> None:
        async with activator.run(GatewayMetrics()):
            ready.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield f"127.0.0.1:{activator.port}"
    finally:
        ended.set()
        thread.join()


def call(address: str, authority: str, method: str = GENERATE) -> grpc.RpcError:
    """Returns the error of a call that names an authority, as a Service's address does."""
    options = [("grpc.default_authority", authority)]
    with grpc.insecure_channel(address, options) as channel, pytest.raises(grpc.RpcError) as caught:
        list(channel.stream_stream(method)(iter([b"anything"]), timeout=PATIENCE_S))
    return caught.value


@pytest.mark.parametrize(
    ("authority", "found"),
    [
        ("demo:50051", "models/demo"),
        ("demo.models:50051", "models/demo"),
        ("demo.models.svc.cluster.local.:50051", "models/demo"),
        ("demo.other:50051", None),
        ("always.models:50051", None),
        ("two:50051", None),
        ("two.b.svc", "b/two"),
        ("", None),
        ("[::1]:50051", None),
    ],
)
def test_which_pipeline_an_authority_names(authority: str, found: str | None) -> None:
    sleeper = find_sleeper((*OTHERS, ASLEEP), authority)
    assert (sleeper.qualified if sleeper else None) == found


def test_every_method_wakes_the_pipeline_and_says_when_to_call_again() -> None:
    source = Source()
    with serve(source) as address:
        for method in (GENERATE, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"):
            said = status_of_call(call(address, "demo.models.svc:50051", method))
            assert said is not None
            told = read_status(said)
            assert (told.code, told.reason, told.retry_after_s) == (grpc.StatusCode.UNAVAILABLE, "NOT_READY", 1.0)
            assert told.is_of_a_stage
            assert "models/demo slept" in told.message
        wait_until(lambda: bool(source.woken))
        assert set(source.woken) == {"models/demo"}
        assert call(address, "demo", "/grpc.health.v1.Health/Watch").code() is grpc.StatusCode.UNIMPLEMENTED


def test_many_callers_wake_it_once() -> None:
    source = Source()
    with serve(source) as address, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: call(address, "demo.models"), range(8)))
        wait_until(lambda: bool(source.woken))
        source.served = replace(ASLEEP, asleep=False, waking=True)
        before = len(source.woken)
        assert status_of_call(call(address, "demo.models")) is not None
        assert len(source.woken) == before, "one that wakes is not woken again"


def test_one_that_cannot_be_woken_is_still_answered() -> None:
    source = Source()
    source.refuses = True
    with serve(source) as address:
        assert status_of_call(call(address, "demo.models")) is not None


def test_a_call_that_names_no_sleeper_wakes_nobody() -> None:
    source = Source()
    with serve(source) as address:
        error = call(address, "two:50051")
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "no pipeline that sleeps is called 'two:50051'" in str(error.details())
        assert status_of_call(error) is None
    assert source.woken == []


def test_the_client_waits_until_the_pipeline_serves() -> None:
    """The activator and then the stage are at the same address, as behind the pipeline's Service."""
    source = Source()
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        with serve(source) as address:
            port = int(address.rpartition(":")[2])
            client = stack.enter_context(OmniClient(f"localhost:{port}"))
            source.served = replace(ASLEEP, name="localhost")
            answer = pool.submit(client.run, text="Hello", timeout=PATIENCE_S)
            wait_until(lambda: bool(source.woken))
        stack.enter_context(serve_entry(port=port))
        assert answer.result().text == "".join(WORDS)
