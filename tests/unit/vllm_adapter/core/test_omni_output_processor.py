"""OmniOutputProcessor with vLLM's own classes: it takes the rows from outputs in order, and leaves the rest to vLLM."""

from __future__ import annotations

import time

import pytest
import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from vllm import PoolingParams, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.metrics.stats import IterationStats

from omni_stage.errors import InvalidTensorError, ModelExecutionError, QueueTimeoutError
from omni_stage.exchange import FinishReason as StepEnd
from omni_stage.vllm_adapter.core.output_processor import OmniOutputProcessor
from omni_stage.vllm_adapter.core.outputs import convert_output, join_tensors
from omni_stage.vllm_adapter.scheduling.playback import FIRST_OUTPUTS
from omni_stage.vllm_adapter.wiring.packing import pack_error, pack_tensors


def make_request(
    internal: str, external: str, *, pooling: bool = False, ids: list[int] | None = None, most: int = 8
) -> EngineCoreRequest:
    sampling = SamplingParams(max_tokens=most, detokenize=False, output_kind=RequestOutputKind.DELTA)
    return EngineCoreRequest(
        request_id=internal,
        external_req_id=external,
        prompt_token_ids=ids if ids is not None else [1, 2, 3],
        mm_features=None,
        sampling_params=None if pooling else sampling,
        pooling_params=PoolingParams() if pooling else None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


@pytest.fixture
def processor() -> OmniOutputProcessor:
    return OmniOutputProcessor(None, log_stats=False)


def rows(*values: float) -> torch.Tensor:
    return torch.tensor([[value] for value in values])


def step(
    internal: str, token_ids: list[int], tensor: torch.Tensor | None = None, finish: FinishReason | None = None
) -> EngineCoreOutput:
    return EngineCoreOutput(request_id=internal, new_token_ids=token_ids, pooling_output=tensor, finish_reason=finish)


def test_rows_leave_before_detokenizing_and_stay_in_order(processor: OmniOutputProcessor) -> None:
    capture = processor.open_capture("a")
    processor.add_request(make_request("a-1", "a"), None)
    first = processor.process_outputs([step("a-1", [7], rows(1, 2, 3))]).request_outputs[0]
    assert first.outputs[0].token_ids == [7]
    converted = convert_output(first, capture, first=True)
    assert converted.prompt_token_ids == [1, 2, 3]
    assert converted.tensors["rows"].flatten().tolist() == [1, 2, 3]
    # Two engine steps pass before the consumer reads. It gets their rows together and in order.
    processor.process_outputs([step("a-1", [8], rows(4))])
    last = processor.process_outputs([step("a-1", [9], rows(5), FinishReason.LENGTH)]).request_outputs[0]
    converted = convert_output(last, capture, first=False)
    assert converted.tensors["rows"].flatten().tolist() == [4, 5]
    assert (converted.finish_reason, converted.prompt_token_ids) == (StepEnd.LENGTH, None)
    assert processor.get_num_unfinished_requests() == 0


def test_rows_without_a_capture_are_dropped(processor: OmniOutputProcessor) -> None:
    processor.add_request(make_request("a-1", "a"), None)
    output = processor.process_outputs([step("a-1", [7], rows(1))]).request_outputs[0]
    assert output.outputs[0].token_ids == [7]


def test_the_first_outputs_of_a_request_are_handled_before_those_of_older_ones(processor: OmniOutputProcessor) -> None:
    for name in ("old", "new"):
        processor.open_capture(name)
        processor.add_request(make_request(f"{name}-1", name, most=32), None)
    for _ in range(FIRST_OUTPUTS):
        processor.process_outputs([step("old-1", [1], rows(1))])
    orders = []
    for _ in range(FIRST_OUTPUTS + 1):
        outputs = processor.process_outputs([step("old-1", [1], rows(1)), step("new-1", [2], rows(2))])
        orders.append([output.request_id for output in outputs.request_outputs])
    assert orders[:FIRST_OUTPUTS] == [["new", "old"]] * FIRST_OUTPUTS
    assert orders[FIRST_OUTPUTS] == ["old", "new"], "requests that are past their first outputs keep vLLM's order"


def test_each_request_has_its_own_capture(processor: OmniOutputProcessor) -> None:
    captures = {name: processor.open_capture(name) for name in "ab"}
    for name in "ab":
        processor.add_request(make_request(f"{name}-1", name), None)
    processor.process_outputs([step("a-1", [1], rows(1)), step("b-1", [2], rows(2))])
    assert {name: capture.take()[0].item() for name, capture in captures.items()} == {"a": 1, "b": 2}
    processor.close_capture("a")
    processor.process_outputs([step("a-1", [1], rows(3)), step("b-1", [2], rows(4))])
    assert captures["a"].take() == []
    assert [tensor.item() for tensor in captures["b"].take()] == [4]


def test_an_output_of_an_aborted_request_is_ignored(processor: OmniOutputProcessor) -> None:
    assert processor.process_outputs([step("gone", [1], rows(1))]).request_outputs == []


def test_the_prompt_is_not_shared_with_the_scheduler(processor: OmniOutputProcessor) -> None:
    shared = [1, 2, 3]
    processor.add_request(make_request("a-1", "a", ids=shared), None)
    shared.extend([4, 5])
    output = processor.process_outputs([step("a-1", [7])]).request_outputs[0]
    assert output.prompt_token_ids == [1, 2, 3]


def test_vllms_span_of_a_request_is_below_the_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of requests without tracing, and of pooling requests, are not made at all."""
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    processor = OmniOutputProcessor.like(OutputProcessor(None, log_stats=True))
    parent = "b7ad6b7169203331"
    for name, traceparent in (("a", f"00-{'1' * 32}-{parent}-01"), ("b", "")):
        processor.open_capture(name, traceparent)
        processor.add_request(make_request(f"{name}-1", name), None)
        for output in (step(f"{name}-1", [7]), step(f"{name}-1", [8], finish=FinishReason.LENGTH)):
            processor.process_outputs([output], time.monotonic(), IterationStats())
    processor.open_capture("p", f"00-{'1' * 32}-{parent}-01")
    processor.add_request(make_request("p-1", "p", pooling=True), None)
    processor.process_outputs([step("p-1", [], rows(1), FinishReason.STOP)], time.monotonic(), IterationStats())
    (span,) = spans.get_finished_spans()
    assert span.name == "llm_request"
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == parent
    assert span.attributes is not None
    assert span.attributes["gen_ai.usage.completion_tokens"] == 2


def test_a_diffusion_output(processor: OmniOutputProcessor) -> None:
    capture = processor.open_capture("d")
    processor.add_request(make_request("d-1", "d", pooling=True), None)
    done = step("d-1", [], torch.ones(4), FinishReason.STOP)
    done.stop_reason = "diffusion_done"
    output = processor.process_outputs([done]).request_outputs[0]
    converted = convert_output(output, capture, first=True)
    assert converted.tensors["output"].tolist() == [1, 1, 1, 1]
    assert (converted.finish_reason, converted.stop_reason) == (StepEnd.DIFFUSION_DONE, "diffusion_done")


def test_when_a_diffusion_request_was_first_scheduled(processor: OmniOutputProcessor) -> None:
    capture = processor.open_capture("d")
    processor.add_request(make_request("d-1", "d", pooling=True), None)
    done = step("d-1", [], torch.ones(4), FinishReason.STOP)
    kinds = EngineCoreEventType
    happened = [(kinds.QUEUED, 1.5), (kinds.SCHEDULED, 2.5), (kinds.PREEMPTED, 3.5), (kinds.SCHEDULED, 4.5)]
    done.events = [EngineCoreEvent(kind, at) for kind, at in happened]
    output = processor.process_outputs([done]).request_outputs[0]
    assert convert_output(output, capture, first=True).scheduled_ns == 2_500_000_000


@pytest.mark.parametrize(
    ("stop_reason", "tensor", "error", "message"),
    [
        pytest.param("queue_timeout", torch.empty(0), QueueTimeoutError, "waited too long", id="queue timeout"),
        pytest.param("queue_timeout", None, QueueTimeoutError, "waited too long", id="without a tensor"),
        pytest.param("invalid_output: no output", torch.empty(0), ModelExecutionError, "no output", id="no output"),
        pytest.param("invalid_payload: x", torch.empty(0), InvalidTensorError, "x", id="payload unreadable"),
        pytest.param(None, torch.empty(0), ModelExecutionError, "no output", id="nothing said"),
        pytest.param("diffusion_done", pack_error("ValueError", "bad"), ModelExecutionError, "bad", id="model failed"),
        pytest.param(
            "diffusion_done", pack_error("InvalidTensorError", "bad"), InvalidTensorError, "bad", id="request's fault"
        ),
    ],
)
def test_diffusion_requests_that_fail(
    processor: OmniOutputProcessor,
    stop_reason: str | None,
    tensor: torch.Tensor | None,
    error: type[Exception],
    message: str,
) -> None:
    capture = processor.open_capture("d")
    processor.add_request(make_request("d-1", "d", pooling=True), None)
    ended = step("d-1", [], tensor, FinishReason.ABORT)
    ended.stop_reason = stop_reason
    output = processor.process_outputs([ended]).request_outputs[0]
    with pytest.raises(error, match=message):
        convert_output(output, capture, first=True)


@pytest.mark.parametrize(
    ("stop_reason", "error"),
    [
        pytest.param("invalid_payload: shape", InvalidTensorError, id="payload unreadable"),
        pytest.param(None, ModelExecutionError, id="aborted"),
    ],
)
def test_autoregressive_requests_that_the_scheduler_ends(
    processor: OmniOutputProcessor, stop_reason: str | None, error: type[Exception]
) -> None:
    capture = processor.open_capture("a")
    processor.add_request(make_request("a-1", "a"), None)
    ended = step("a-1", [], None, FinishReason.ABORT)
    ended.stop_reason = stop_reason
    output = processor.process_outputs([ended]).request_outputs[0]
    with pytest.raises(error):
        convert_output(output, capture, first=True)


def test_packed_tensors_join_by_name() -> None:
    delta = torch.tensor([5])
    parts = [pack_tensors({"rows": rows(1, 2), "mrope_delta": delta}), rows(3)]
    joined = join_tensors(parts, "rows")
    assert joined["rows"].flatten().tolist() == [1, 2, 3]
    assert joined["mrope_delta"].tolist() == [5]
