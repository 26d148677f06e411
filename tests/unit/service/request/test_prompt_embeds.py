"""Prompt embeddings, priority and cache salt, from the client's call to the engine's request, over real gRPC."""

from __future__ import annotations

import asyncio
import re
from contextlib import ExitStack
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from omni_proto.client import AsyncOmniClient, OmniRequestError
from omni_proto.stage.v1 import stage_service_pb2 as pb, tensors_pb2
from omni_proto.tensors import prompt_embeds_spec, spec_from_proto
from omni_stage.errors import ByteBudgetExceededError, TooManyRequestsError
from omni_stage.service.guard.admission import Admission
from omni_stage.service.request.planning.announced import EMBEDS_COPIES
from support.stages import scripted_stages as lab

HIDDEN = 8
SPEC = prompt_embeds_spec(HIDDEN, "bfloat16")


async def serve(kit: Any, **config: Any) -> Any:
    stage = await kit.serve(**config)
    stage.engine.prompt_embeds = SPEC
    return stage


def header(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": "prompt_embeds",
        "dtype": tensors_pb2.DTYPE_FLOAT32,
        "row_shape": [HIDDEN],
        "max_rows": 3,
    }
    return {**values, **changes}


def chunk(rows: int = 3, value: float = 0.5, **changes: Any) -> pb.GenerateRequest:
    import google_crc32c

    data = np.full((rows, HIDDEN), value, dtype=np.float32).tobytes()
    fields = {"name": "prompt_embeds", "rows": rows, "crc32c": google_crc32c.value(data), "last": True, "data": data}
    return pb.GenerateRequest(tensor=tensors_pb2.TensorChunk(**{**fields, **changes}))


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        pytest.param(np.linspace(-1, 1, 3 * HIDDEN, dtype=np.float32).reshape(3, HIDDEN), torch.float32, id="float32"),
        pytest.param(np.linspace(-1, 1, 3 * HIDDEN, dtype=np.float16).reshape(3, HIDDEN), torch.float16, id="float16"),
        pytest.param(
            torch.linspace(-1, 1, 3 * HIDDEN).bfloat16().reshape(3, HIDDEN).view(torch.uint16).numpy(),
            torch.bfloat16,
            id="bits of bfloat16",
        ),
        pytest.param(np.ones((60, HIDDEN), dtype=np.float32), torch.float32, id="as long as fits"),
    ],
)
async def test_rows_reach_the_engine(kit: Any, array: Any, expected: torch.dtype) -> None:
    stage = await serve(kit)
    async with AsyncOmniClient(stage.target) as client:
        described = spec_from_proto((await client.get_stage()).prompt_embeds)
        assert (described.dtype, described.row_shape) == ("bfloat16", (HIDDEN,))
        result = await client.run(prompt_embeds=array, priority=-3, cache_salt="tenant", include_token_ids=True)
    assert result.text == "Hello"
    (request,) = stage.engine.requests
    rows = request.source.prompt_embeds.to_tensor()
    assert rows.dtype is expected
    assert torch.equal(rows.view(torch.uint8), torch.from_numpy(array).view(torch.uint8))
    assert (request.priority, request.cache_salt) == (-3, "tenant")
    assert stage.server.admission.bytes == 0


async def test_the_example_of_the_page_runs(
    kit: Any, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (request.config.rootpath / "docs" / "requests.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (example,) = [text for text in examples if "prompt_embeds=" in text]
    stage = await serve(kit)
    assert "localhost:50051" in example
    await asyncio.to_thread(exec, example.replace("localhost:50051", stage.target), {})
    assert capsys.readouterr().out == "Hello\n"
    (asked,) = stage.engine.requests
    assert asked.source.prompt_embeds.shape == [4, HIDDEN]
    assert (asked.priority, asked.cache_salt) == (10, "5f0c7a1e")


async def test_the_example_of_the_readme_runs(
    kit: Any, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (request.config.rootpath / "README.md").read_text()
    example, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    stage = await kit.serve()
    assert "localhost:50051" in example
    await asyncio.to_thread(exec, example.replace("localhost:50051", stage.target), {})
    assert "TextDelta(" in capsys.readouterr().out
    (asked,) = stage.engine.requests
    assert asked.sampling.max_tokens == 64


async def test_rows_are_reserved_as_often_as_they_are_held(kit: Any) -> None:
    """The byte budget counts the rows once for each of their EMBEDS_COPIES copies."""
    reserved = []

    async def note(request: Any) -> Any:
        reserved.append(stage.server.admission.bytes)
        async for step in lab.say_hello(request):
            yield step

    stage = await serve(kit, script=note)
    answer = await lab.ask(stage, [pb.GenerateRequest(start=pb.Start(prompt_embeds=header())), chunk(), lab.END])
    assert answer.code is grpc.StatusCode.OK
    assert reserved == [EMBEDS_COPIES * 3 * HIDDEN * 4]


async def test_the_engines_zeros_are_not_shown_as_token_ids(kit: Any) -> None:
    """The engine's placeholder ids for prompt embeddings are not returned to the client."""
    stage = await serve(kit)
    include = {"token_ids": True}
    for start, ids in ((pb.Start(text="x", include=include), [1, 2, 3]), (pb.Start(include=include), [])):
        messages = [pb.GenerateRequest(start=start), lab.END]
        if not start.text:
            start.prompt_embeds.CopyFrom(tensors_pb2.TensorHeader(**header()))
            messages = [pb.GenerateRequest(start=start), chunk(), lab.END]
        answer = await lab.ask(stage, messages)
        assert list(answer.of("tokens")[0].prompt_ids) == ids
        assert answer.of("finished")[0].usage.prompt_tokens == 3


BAD_HEADERS = [
    pytest.param(header(name="x"), "INVALID_TENSOR", "start.prompt_embeds.name", id="name"),
    pytest.param(header(dtype=tensors_pb2.DTYPE_INT8), "INVALID_TENSOR", "start.prompt_embeds.dtype", id="integers"),
    pytest.param(header(dtype=99), "INVALID_TENSOR", "start.prompt_embeds.dtype", id="a dtype of the future"),
    pytest.param(header(row_shape=[9]), "INVALID_TENSOR", "start.prompt_embeds.row_shape", id="hidden size"),
    pytest.param(header(row_shape=[]), "INVALID_TENSOR", "start.prompt_embeds.row_shape", id="no hidden size"),
    pytest.param(header(max_rows=0), "INVALID_REQUEST", "start.prompt_embeds.max_rows", id="no rows"),
    pytest.param(header(max_rows=64), "PROMPT_TOO_LONG", "start.prompt_embeds.max_rows", id="no room for a token"),
    pytest.param(header(max_rows=2**63), "PROMPT_TOO_LONG", "start.prompt_embeds.max_rows", id="absurdly long"),
]


@pytest.mark.parametrize(("announced", "reason", "field"), BAD_HEADERS)
async def test_a_bad_announcement_is_refused_by_field(
    kit: Any, announced: dict[str, Any], reason: str, field: str
) -> None:
    stage = await serve(kit)
    answer = await lab.ask(stage, [pb.GenerateRequest(start=pb.Start(prompt_embeds=announced)), lab.END])
    assert (answer.info.reason, answer.info.metadata["field"]) == (reason, field)
    assert not answer.of("accepted")
    assert not stage.engine.requests


BAD_ROWS = [
    pytest.param([chunk(value=float("nan"))], "NON_FINITE_TENSOR", id="NaN"),
    pytest.param([chunk(value=float("-inf"))], "NON_FINITE_TENSOR", id="infinity"),
    pytest.param([chunk(crc32c=1)], "CORRUPT_TENSOR", id="checksum"),
    pytest.param([chunk(rows=4)], "INVALID_TENSOR", id="more than announced"),
    pytest.param([chunk(name="x")], "INVALID_TENSOR", id="another tensor"),
    pytest.param([chunk(last=False)], "CORRUPT_TENSOR", id="no last chunk"),
    pytest.param([chunk(rows=0)], "INVALID_REQUEST", id="no row"),
    pytest.param([], "CORRUPT_TENSOR", id="nothing"),
]


@pytest.mark.parametrize(("chunks", "reason"), BAD_ROWS)
async def test_bad_rows_are_refused(kit: Any, chunks: list[Any], reason: str) -> None:
    stage = await serve(kit)
    answer = await lab.ask(stage, [pb.GenerateRequest(start=pb.Start(prompt_embeds=header())), *chunks, lab.END])
    assert answer.info.reason == reason, answer.message
    assert not stage.engine.requests
    assert stage.server.admission.bytes == 0


async def test_stages_that_take_none_say_why(kit: Any) -> None:
    alone, (first, _, _) = await kit.serve(), await kit.chain()
    why = [(alone, "engineArgs.enablePromptEmbeds set to true"), (first, "stage 'talker' also needs the token ids")]
    for stage, because in why:
        async with AsyncOmniClient(stage.target) as client:
            assert not (await client.get_stage()).HasField("prompt_embeds")
            with pytest.raises(OmniRequestError, match=because) as caught:
                await client.run(prompt_embeds=np.ones((3, HIDDEN), dtype=np.float32))
        assert (caught.value.reason, caught.value.field) == ("INVALID_REQUEST", "start.prompt_embeds")


async def test_priority_and_salt_go_down_the_chain(kit: Any) -> None:
    stages = await kit.chain()
    answer = await lab.ask(stages[0], [lab.start(priority=7, cache_salt="tenant"), lab.END])
    assert answer.code is grpc.StatusCode.OK
    asked = [(stage.engine.requests[0].priority, stage.engine.requests[0].cache_salt) for stage in stages]
    assert asked == [(7, "tenant")] * 3


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"priority": 1001}, "start.priority"),
        ({"priority": -(2**31)}, "start.priority"),
        ({"cache_salt": "\u00e4" * 65}, "start.cache_salt"),
    ],
)
async def test_bounds(kit: Any, fields: dict[str, Any], field: str) -> None:
    answer = await lab.ask(await kit.serve(), [lab.start(**fields), lab.END])
    assert (answer.info.reason, answer.info.metadata["field"]) == ("INVALID_REQUEST", field)


@pytest.mark.parametrize("priority", [1, 1000])
def test_requests_above_priority_0_leave_a_quarter_to_the_others(priority: int) -> None:
    with ExitStack() as held:
        requests = Admission(8, 1000)

        def take(admission: Admission, priority: int, needed: int = 0) -> None:
            held.enter_context(admission.admit(needed, priority=priority))

        for _ in range(6):
            take(requests, priority)
        with pytest.raises(TooManyRequestsError, match="a priority above 0 may fill three quarters") as caught:
            take(requests, priority)
        assert caught.value.details.retry_after_s
        take(requests, 0)
        take(requests, -1000)
        with pytest.raises(TooManyRequestsError):
            take(requests, -1000)

        by_bytes = Admission(8, 1000)
        take(by_bytes, priority, 900)  # an idle stage admits any size
        with pytest.raises(ByteBudgetExceededError):
            take(by_bytes, priority, 1)
        take(by_bytes, 0, 100)

        take(Admission(1, 1000), priority)  # at least one request is admitted
