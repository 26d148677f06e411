"""Every way in which DiffusionScheduler ends a request early: timeout, long prompt, bad payload, bad output, abort."""

from __future__ import annotations

import time

import pytest
import torch
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from omni_stage.vllm_adapter.diffusion.scheduler import DiffusionScheduler


def test_queue_timeout_ends_the_waiting_request(make, diffusion_request, run_step, new_ids):
    scheduler = make(settings={"queue_timeout_s": 5.0, "max_batch": 1})
    now = 100.0
    scheduler.clock = lambda: now
    for name in ("runs", "waits"):
        scheduler.add_request(diffusion_request(name))
    first = scheduler.schedule()
    assert new_ids(first) == ["runs"]
    now = 105.0
    empty = scheduler.schedule()
    assert empty.total_num_scheduled_tokens == 0
    assert "waits" in scheduler.requests
    now = 105.1
    late = scheduler.schedule()
    assert new_ids(late) == []
    results = scheduler.update_from_output(first, run_step(scheduler, first))[0].outputs
    by_id = {result.request_id: result for result in results}
    # The running request does not time out, however long its step takes.
    assert by_id["runs"].stop_reason == "diffusion_done"
    assert by_id["waits"].stop_reason == "queue_timeout"
    assert by_id["waits"].finish_reason == FinishReason.ABORT
    assert by_id["waits"].pooling_output is not None
    assert by_id["waits"].pooling_output.numel() == 0
    assert scheduler.get_num_unfinished_requests() == 0
    scheduler.schedule()
    assert scheduler._queued_at == {}


def test_timed_out_request_is_not_scheduled_in_the_step_that_finds_it(make, diffusion_request, step, new_ids):
    scheduler = make(settings={"queue_timeout_s": 5.0})
    now = 0.0
    scheduler.clock = lambda: now
    scheduler.add_request(diffusion_request("late"))
    now = 6.0
    scheduler.add_request(diffusion_request("fresh"))
    output, results = step(scheduler)
    assert new_ids(output) == ["fresh"]
    assert {name: result.stop_reason for name, result in results.items()} == {
        "late": "queue_timeout",
        "fresh": "diffusion_done",
    }


def test_autoregressive_requests_have_no_queue_timeout(make_scheduler, ar_request, step, new_ids):
    scheduler = make_scheduler(DiffusionScheduler, additional_config={"omni_diffusion": {"queue_timeout_s": 1}})
    now = 0.0
    scheduler.clock = lambda: now
    scheduler.add_request(ar_request("ar"))
    now = 99.0
    assert new_ids(step(scheduler)[0]) == ["ar"]


def test_wall_clock_does_not_matter(make, diffusion_request, step):
    scheduler = make(settings={"queue_timeout_s": 5.0})
    assert scheduler.clock is time.monotonic
    request = diffusion_request("a")
    request.arrival_time -= 3600
    scheduler.add_request(request)
    assert step(scheduler)[1]["a"].stop_reason == "diffusion_done"
    # The scheduler's clock returns monotonic times, which differ from the wall clock's.
    before = time.monotonic()
    assert before <= scheduler.clock() <= time.monotonic()


def test_more_tokens_than_one_step_takes_end_the_request_and_block_nobody(make, diffusion_request, step, new_ids):
    scheduler = make()
    scheduler.add_request(diffusion_request("long", tokens=129))
    scheduler.add_request(diffusion_request("next"))
    output, results = step(scheduler)
    assert new_ids(output) == ["next"]
    assert results["long"].finish_reason == FinishReason.ABORT
    assert results["long"].stop_reason == "prompt_too_long: one step takes at most 128 tokens"
    assert results["next"].stop_reason == "diffusion_done"


@pytest.mark.parametrize("raw", [b"", b"\x00", "text", b"\x81\xa7entries\x90"], ids=["empty", "number", "text", "list"])
def test_unreadable_payload_ends_that_request_only(raw, make, diffusion_request, step):
    scheduler = make()
    scheduler.add_request(diffusion_request("bad", raw=raw))
    scheduler.add_request(diffusion_request("good"))
    _, results = step(scheduler)
    assert results["bad"].finish_reason == FinishReason.ABORT
    assert results["bad"].stop_reason.startswith("invalid_payload")
    assert results["bad"].pooling_output.numel() == 0
    assert results["good"].stop_reason == "diffusion_done"
    assert scheduler.get_num_unfinished_requests() == 0


BAD_OUTPUTS = {
    "nothing": None,
    "a list": [1.0, 2.0],
    "a sparse tensor": torch.eye(2).to_sparse(),
    "a tensor elsewhere": torch.empty(2, device="meta"),
}


@pytest.mark.parametrize("name", BAD_OUTPUTS)
def test_bad_output_ends_that_request_only(name, make, diffusion_request, step):
    scheduler = make()
    for request_id in ("bad", "good"):
        scheduler.add_request(diffusion_request(request_id))
    _, results = step(scheduler, {"bad": BAD_OUTPUTS[name]})
    assert results["bad"].finish_reason == FinishReason.ABORT
    assert results["bad"].stop_reason.startswith("invalid_output: ")
    assert results["good"].stop_reason == "diffusion_done"
    assert scheduler.get_num_unfinished_requests() == 0


@pytest.mark.parametrize("cut", ["row", "all", "index"])
def test_output_that_lacks_requests_does_not_end_the_engine(cut, make, diffusion_request, run_step):
    scheduler = make()
    for request_id in ("a", "b"):
        scheduler.add_request(diffusion_request(request_id))
    output = scheduler.schedule()
    answer = run_step(scheduler, output)
    if cut == "row":
        answer.pooler_output.pop()
    elif cut == "all":
        answer.pooler_output = None
    else:
        del answer.req_id_to_index["b"]
    results = {result.request_id: result for result in scheduler.update_from_output(output, answer)[0].outputs}
    assert results["b"].stop_reason == "invalid_output: the worker returned no output"
    assert results["a"].stop_reason == (results["b"].stop_reason if cut == "all" else "diffusion_done")


def test_request_aborted_while_its_step_runs_is_dropped(make, diffusion_request, run_step):
    scheduler = make()
    scheduler.add_request(diffusion_request("a"))
    output = scheduler.schedule()
    answer = run_step(scheduler, output)
    scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert scheduler.update_from_output(output, answer) == {}
    assert scheduler.running == []
