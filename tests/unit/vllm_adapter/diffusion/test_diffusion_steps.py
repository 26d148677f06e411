"""Single steps of the diffusion runner for scheduler outputs of vLLM's own types, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

from omni_stage.errors import ConfigurationError
from omni_stage.payloads import AdditionalInformationPayload
from omni_stage.vllm_adapter.diffusion.runner import GPUDiffusionModelRunner
from omni_stage.vllm_adapter.scheduling.payloads import OmniNewRequestData
from omni_stage.vllm_adapter.wiring.packing import unpack


class Doubler(nn.Module):
    """Doubles `x` into a buffer that its next step overwrites. A request without `x` gets 0."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = torch.zeros(4)
        self.fault: Exception | None = None

    def generate(self, requests: list[AdditionalInformationPayload]) -> list[torch.Tensor]:
        if self.fault is not None:
            raise self.fault
        self.shared[: len(requests)] = torch.tensor([r.tensor("x").item() * 2 if "x" in r else 0.0 for r in requests])
        return [self.shared[index] for index in range(len(requests))]


def make_runner(*, async_scheduling: bool = False, pipeline: int = 1) -> GPUDiffusionModelRunner:
    config: Any = SimpleNamespace(
        model_config=None,
        parallel_config=SimpleNamespace(pipeline_parallel_size=pipeline),
        scheduler_config=SimpleNamespace(async_scheduling=async_scheduling),
        compilation_config=SimpleNamespace(static_forward_context={}),
    )
    runner = GPUDiffusionModelRunner(config, torch.device("cpu"))
    runner.model = Doubler()
    return runner


def new_request(request_id: str, x: float | None = None, *, prompt: int = 1, payload_error: str = "") -> NewRequestData:
    data = NewRequestData(
        req_id=request_id,
        prompt_token_ids=[0] * prompt,
        mm_features=[],
        sampling_params=None,
        pooling_params=None,
        block_ids=(),
        num_computed_tokens=0,
        lora_request=None,
    )
    if x is None and not payload_error:
        return data
    payload = None if x is None else AdditionalInformationPayload.from_mapping({"x": torch.tensor([x])})
    return OmniNewRequestData.upgrade(data, payload, payload_error)


def step(
    scheduled: dict[str, int],
    *,
    new: tuple[NewRequestData, ...] = (),
    cached: tuple[tuple[str, int], ...] = (),
    **rest: Any,
) -> SchedulerOutput:
    output = SchedulerOutput.make_empty()
    output.num_scheduled_tokens = scheduled
    output.total_num_scheduled_tokens = sum(scheduled.values())
    output.scheduled_new_reqs = list(new)
    output.scheduled_cached_reqs.req_ids = [request_id for request_id, _ in cached]
    output.scheduled_cached_reqs.num_computed_tokens = [start for _, start in cached]
    for name, value in rest.items():
        setattr(output, name, value)
    return output


def values(output: Any) -> list[Any]:
    return [None if tensor is None else tensor.item() for tensor in output.pooler_output]


def test_a_batch_comes_back_in_its_order_and_owns_its_results() -> None:
    runner = make_runner()
    first = runner.execute_model(step({"a": 1, "b": 1}, new=(new_request("a", 1.0), new_request("b", 2.0))))
    second = runner.execute_model(step({"c": 1}, new=(new_request("c", 7.0),)))
    assert first.req_ids == ["a", "b"]
    assert first.req_id_to_index == {"a": 0, "b": 1}
    assert values(first) == [2.0, 4.0]
    assert values(second) == [14.0]


def test_a_step_without_requests_gives_the_empty_output() -> None:
    assert make_runner().execute_model(step({})) is EMPTY_MODEL_RUNNER_OUTPUT


def test_a_request_without_payload_reaches_the_model_as_an_empty_one() -> None:
    assert values(make_runner().execute_model(step({"a": 1}, new=(new_request("a"),)))) == [0.0]


def test_a_prompt_in_chunks_is_generated_once_at_its_end() -> None:
    runner = make_runner()
    long = new_request("long", 3.0, prompt=5)
    assert values(runner.execute_model(step({"long": 3, "a": 1}, new=(long, new_request("a", 1.0))))) == [None, 2.0]
    assert values(runner.execute_model(step({"long": 2}, cached=(("long", 3),)))) == [6.0]
    assert not runner._waiting


def test_requests_that_end_before_they_run_leave_nothing() -> None:
    runner = make_runner()
    runner.execute_model(step({"a": 1}, new=(new_request("a", 1.0, prompt=2),)))
    assert runner._waiting
    runner.execute_model(step({}, finished_req_ids={"a"}))
    assert not runner._waiting


def test_an_unreadable_payload_is_not_generated() -> None:
    runner = make_runner()
    new = (new_request("bad", payload_error="checksum"), new_request("good", 1.0))
    assert values(runner.execute_model(step({"bad": 1, "good": 1}, new=new))) == [None, 2.0]
    assert not runner._waiting


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_result_that_is_not_finite_fails_its_request_alone(bad: float) -> None:
    runner = make_runner()
    runner.model.generate = lambda requests: [{"wave": torch.tensor([1.0, value])} for value in (5.0, bad)]
    new = (new_request("good", 1.0), new_request("bad", 2.0))
    output = runner.execute_model(step({"good": 1, "bad": 1}, new=new))
    assert unpack(output.pooler_output[0], "output").tensors["wave"].tolist() == [1.0, 5.0]
    kind, text = unpack(output.pooler_output[1], "output").error
    assert (kind, text) == ("ModelExecutionError", "the model gave values that are not finite (wave)")


def test_integers_are_finite() -> None:
    runner = make_runner()
    runner.model.generate = lambda requests: [torch.tensor([7])]
    assert values(runner.execute_model(step({"a": 1}, new=(new_request("a", 1.0),)))) == [7]


def test_a_model_may_warm_up() -> None:
    runner, warmed = make_runner(), []
    runner.warming_up_model()
    runner.model.warm_up = lambda: warmed.append(True)
    runner.warming_up_model()
    assert warmed == [True]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param(torch.OutOfMemoryError("tried to allocate"), "too little memory", id="memory"),
        pytest.param(IndexError("index 4711 is out of range"), "(IndexError)", id="anything else"),
    ],
)
def test_a_fault_is_reported_without_its_message(fault: Exception, message: str) -> None:
    """A model's exception is reported without its message, which may quote values."""
    runner = make_runner()
    runner.model.fault = fault
    output = runner.execute_model(step({"a": 1}, new=(new_request("a", 1.0),)))
    kind, text = unpack(output.pooler_output[0], "output").error
    assert kind == "ModelExecutionError"
    assert message in text
    assert "4711" not in text


def test_a_wrong_number_of_results_is_the_models_fault() -> None:
    runner = make_runner()
    runner.model.generate = lambda requests: []
    output = runner.execute_model(step({"a": 1}, new=(new_request("a", 1.0),)))
    assert unpack(output.pooler_output[0], "output").error == (
        "ModelExecutionError",
        "the model gave 0 results for 1 requests",
    )


def test_a_broken_device_ends_the_engine() -> None:
    runner = make_runner()
    runner.model.fault = torch.AcceleratorError("device-side assert")
    with pytest.raises(torch.AcceleratorError):
        runner.execute_model(step({"a": 1, "b": 1}, new=(new_request("a", 1.0), new_request("b", 1.0))))


def test_unsupported_settings_and_calls_are_refused() -> None:
    """Settings and calls that a diffusion runner does not support raise ConfigurationError."""
    refused = {"pipeline_parallel_size": {"pipeline": 2}, "async_scheduling": {"async_scheduling": True}}
    for field, options in refused.items():
        with pytest.raises(ConfigurationError) as caught:
            make_runner(**options)
        assert caught.value.details.field == field
    runner = make_runner()
    runner.shutdown()
    with pytest.raises(ConfigurationError):
        runner.get_model()
    with pytest.raises(ConfigurationError):
        runner.initialize_kv_cache(SimpleNamespace(kv_cache_groups=["group"]))
