"""Calls over several pods of a stage: real stage servers, scripted engines, real gRPC. Only names are scripted."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from omni_proto.client import AsyncOmniClient, ChatMessage, OmniClient
from omni_proto.pipeline.components import EngineKind
from omni_proto.rpc.balance import watch
from omni_proto.rpc.balance.choice import Fault, Reason
from omni_proto.rpc.balance.pool import StageChannels
from omni_proto.rpc.balance.report import LOAD_KEY, find_report
from omni_proto.rpc.balance.watch import AioShell
from omni_proto.rpc.channels import open_aio_channel
from omni_proto.stage_config import SamplingDefaults
from omni_stage.errors import ModelExecutionError
from omni_stage.models.component import StageRequest, StageStep
from support.processes.polling import PATIENCE_S, until
from support.stages import scripted_stages as lab
from support.stages.scripted_stages import Kit, Stage

_numbers = itertools.count()


def prompt() -> str:
    """Returns a new prompt: equal ones have the same owner."""
    return f"hello {next(_numbers)}"


class Pods:
    """The pods that a stage has, as a name would say."""

    def __init__(self, *stages: Stage) -> None:
        self.stages = list(stages)
        self.choices: Counter[Reason] = Counter()
        self.ejections: Counter[Fault] = Counter()

    def resolve(self) -> tuple[str, ...]:
        return tuple(f"ipv4:{stage.target}" for stage in self.stages)

    def pool(self) -> StageChannels[grpc.aio.Channel]:
        def open_one(pod: str | None) -> grpc.aio.Channel:
            return open_aio_channel(pod or ("ipv4:" + ",".join(stage.target for stage in self.stages)))

        return StageChannels(
            open_one,
            AioShell(),
            self.resolve,
            on_choice=lambda reason: self.choices.update([reason]),
            on_ejection=lambda fault: self.ejections.update([fault]),
        )


@asynccontextmanager
async def calling(pods: Pods) -> AsyncIterator[AsyncOmniClient]:
    """Yields a client of the pods, once it is connected to each."""
    async with AsyncOmniClient("unused:1") as client:
        client._pool = pool = pods.pool()
        assert (await client.run(text=prompt())).text
        await until(lambda: pool.connected == len(pods.stages))
        yield client


def requests(*stages: Stage) -> list[int]:
    return [len(stage.engine.requests) for stage in stages]


def paced(seconds: float) -> Callable[[StageRequest], AsyncIterator[StageStep]]:
    async def play(request: StageRequest) -> AsyncIterator[StageStep]:
        async for step in lab.say_hello(request):
            await asyncio.sleep(seconds)
            yield step

    return play


async def test_every_answer_and_health_check_reports_the_load(kit: Kit) -> None:
    stage = await kit.serve(lab.wait_forever, limits={"maxConcurrentRequests": 4})
    call = stage.stub.Generate(iter([lab.start(), lab.END]), timeout=PATIENCE_S)
    assert (await anext(aiter(call))).WhichOneof("message") == "accepted"
    report = find_report(await call.initial_metadata())
    assert report is not None, (type(await call.initial_metadata()), list(await call.initial_metadata()))
    assert (report.requests, report.utilization) == (1, 0.25)
    await until(lambda: stage.server.runtime.load.report().running == 1)
    check = health_pb2_grpc.HealthStub(stage.channel).Check(health_pb2.HealthCheckRequest())
    await check
    health = find_report(await check.trailing_metadata())
    assert health is not None
    assert (health.running, health.waiting, health.free_kv) == (1, 0, 1.0)
    call.cancel()
    refused = stage.stub.Generate(iter([lab.start(seed=1, cache_salt="x" * 200), lab.END]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(refused))
    assert LOAD_KEY in dict(caught.value.trailing_metadata())


async def test_calls_spread_over_the_pods(kit: Kit) -> None:
    stages = [await kit.serve(paced(0.01)) for _ in range(3)]
    pods = Pods(*stages)
    async with calling(pods) as client:
        await asyncio.gather(*(client.run(text=prompt()) for _ in range(60)))
        assert min(requests(*stages)) >= 12
        assert pods.choices[Reason.TWO_CHOICES] == 60


async def test_a_new_pod_gets_calls_and_a_leaving_pod_none(kit: Kit) -> None:
    first, second = await kit.serve(), await kit.serve()
    pods = Pods(first, second)
    async with calling(pods) as client:
        new = await kit.serve()
        began = time.monotonic()
        pods.stages.append(new)
        while not new.engine.requests:
            await client.run(text=prompt())
        assert time.monotonic() - began < PATIENCE_S
        first.server.health.set_ready(False)
        await until(lambda: client._pool.connected == 2)
        before = requests(first)
        for _ in range(30):
            assert (await client.run(text=prompt())).text == "Hello"
        assert requests(first) == before, "its address is still known, but it says that it does not serve"
        first.server.health.set_ready(True)
        await until(lambda: client._pool.connected == 3)


async def test_answers_of_a_pod_that_leaves_continue(kit: Kit) -> None:
    first, second = await kit.serve(paced(0.2)), await kit.serve(paced(0.2))
    pods = Pods(first, second)
    async with calling(pods) as client:
        running = [asyncio.create_task(client.run(text=prompt())) for _ in range(8)]
        await until(lambda: sum(requests(first, second)) == 9)
        pods.stages.remove(first)
        await until(lambda: client._pool.connected == 1)
        assert [(await one).text for one in running] == ["Hello"] * 8
        assert not client._pool._retired, "its channel is closed"


async def test_a_dead_pod_costs_no_request(kit: Kit) -> None:
    first, second = await kit.serve(), await kit.serve()
    pods = Pods(first, second)
    async with calling(pods) as client:
        await first.server.close()
        for _ in range(30):
            assert (await client.run(text=prompt())).text == "Hello"
        await until(lambda: client._pool.connected == 1)


async def test_a_failing_pod_is_ejected(kit: Kit) -> None:
    bad, good = await kit.serve(lab.failing(ModelExecutionError("broken"), after=1)), await kit.serve()
    pods = Pods(good, bad)
    async with AsyncOmniClient("unused:1") as client:
        client._pool = pods.pool()
        failed = 0
        while not pods.ejections:
            results = await asyncio.gather(*(client.run(text=prompt()) for _ in range(4)), return_exceptions=True)
            failed += sum(isinstance(result, Exception) for result in results)
        assert pods.ejections == {Fault.FAILING: 1}
        for _ in range(20):
            assert (await client.run(text=prompt())).text == "Hello"


async def test_a_slow_pod_is_ejected(kit: Kit) -> None:
    slow, *fast = [await kit.serve(paced(seconds)) for seconds in (0.5, 0.01, 0.01)]
    pods = Pods(slow, *fast)
    async with calling(pods) as client:
        while not pods.ejections:
            await asyncio.gather(*(client.run(text=prompt()) for _ in range(12)))
        assert pods.ejections == {Fault.SLOW: 1}
        before = requests(slow)
        await asyncio.gather(*(client.run(text=prompt()) for _ in range(30)))
        assert requests(slow) == before


async def test_the_turns_of_a_conversation_reach_one_pod(kit: Kit) -> None:
    stages = [await kit.serve() for _ in range(4)]
    async with calling(Pods(*stages)) as client:
        before = requests(*stages)
        chat = [ChatMessage("user", ["a question"])]
        for _ in range(8):
            answer = (await client.run(chat=chat)).text
            chat += [ChatMessage("assistant", [answer]), ChatMessage("user", ["and then?"])]
        grown = [after - then for after, then in zip(requests(*stages), before, strict=True)]
        assert sorted(grown) == [0, 0, 0, 8]


@pytest.mark.parametrize("kind", ["listed", "named"])
async def test_the_blocking_client_and_stages_use_it_too(kit: Kit, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = [await kit.serve() for _ in range(2)]
    target = "ipv4:" + ",".join(stage.target for stage in stages)
    if kind == "named":
        monkeypatch.setattr(watch, "resolver_of", lambda target: Pods(*stages).resolve)
        target = stages[0].target

    def ask(client: OmniClient, count: int) -> None:
        for _ in range(count):
            assert client.run(text=prompt()).text == "Hello"

    with OmniClient(target) as client:
        await asyncio.to_thread(ask, client, 1)
        await until(lambda: client._pool.connected == 2)
        before = requests(*stages)
        await asyncio.to_thread(ask, client, 20)
        assert sum(requests(*stages)) - sum(before) == 20


async def test_an_edge_chooses_among_the_pods_of_the_next_stage(kit: Kit) -> None:
    decoder = lab.ScriptedComponent(
        kind=EngineKind.DIFFUSION, input_schema=lab.EDGE_B, default_sampling=SamplingDefaults(), voices=("Chelsie",)
    )
    other = await kit.serve(
        lab.make_audio, stage="token2wav", outputs=["Audio"], input={"source": "talker"}, component=decoder
    )
    entry, talker, one = await kit.chain(
        outputs=["Text", "Audio"],
        via=lambda stage, target: f"ipv4:{target},{other.target}" if stage == "token2wav" else target,
    )

    def chosen(reason: Reason) -> float:
        return talker.metric("omni_stage_downstream_choices_total", peer="token2wav", reason=reason) or 0.0

    async with asyncio.timeout(PATIENCE_S):
        while not (one.engine.requests and other.engine.requests and chosen(Reason.TWO_CHOICES)):
            answers = await asyncio.gather(*(lab.ask(entry, timeout_s=PATIENCE_S) for _ in range(10)))
            assert {answer.code for answer in answers} == {grpc.StatusCode.OK}
    assert chosen(Reason.BY_NAME) >= 1, "the first call did not wait for the pods to be found"
