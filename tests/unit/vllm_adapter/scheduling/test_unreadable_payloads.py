"""OmniScheduler ends only the request whose payload cannot be read, and reports the error to that request's client."""

from __future__ import annotations

import logging

import pytest
import torch
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from omni_stage.payloads import AdditionalInformationPayload
from omni_stage.vllm_adapter.scheduling.scheduler import OmniAsyncScheduler, OmniScheduler
from support.engines.scheduler_classes import BOTH


def damage(raw: bytes) -> bytes:
    """Returns the payload with one flipped bit in the tensor's data."""
    index = raw.index(torch.ones(1).numpy().tobytes())
    return raw[:index] + bytes([raw[index] ^ 1]) + raw[index + 1 :]


BAD_PAYLOADS = {
    "flipped bit": lambda good: damage(good),
    "cut short": lambda good: good[:-4],
    "empty": lambda good: b"",
    "not bytes": lambda good: "text",
    "a tensor that vLLM's wire took apart": lambda good: ["float32", [3, 4], 1],
    "another structure": lambda good: b"\x81\xa1a\x01",
    "deep nesting": lambda good: b"\x81\xa7entries" + b"\x81\xa1a" * 5000,
}


@BOTH
@pytest.mark.parametrize("name", BAD_PAYLOADS)
def test_unreadable_payload_ends_that_request_only(
    scheduler_class, name, make_scheduler, ar_request, payload, step, caplog
):
    scheduler = make_scheduler(scheduler_class)
    scheduler.add_request(ar_request("bad", raw=BAD_PAYLOADS[name](payload().to_bytes()), client=1))
    scheduler.add_request(ar_request("good", raw=payload().to_bytes(), max_tokens=2))
    with caplog.at_level(logging.WARNING):
        output, results = step(scheduler)
    bad = next(data for data in output.scheduled_new_reqs if data.req_id == "bad")
    assert bad.additional_information is None
    assert bad.payload_error
    assert results["bad"].finish_reason == FinishReason.ABORT
    assert results["bad"].stop_reason.startswith("invalid_payload: ")
    assert results["bad"].pooling_output is None
    assert results["bad"].new_token_ids == []
    assert "bad" not in scheduler.requests
    assert "request bad ends" in caplog.text
    # The other request continues, and the worker learns that the bad one has ended.
    assert results["good"].new_token_ids == [7]
    output, results = step(scheduler)
    assert "bad" in output.finished_req_ids
    assert results["good"].finish_reason == FinishReason.LENGTH
    assert scheduler.get_num_unfinished_requests() == 0


def test_a_defect_in_reading_ends_the_request_not_the_engine(
    make_scheduler, ar_request, payload, step, monkeypatch, caplog
):
    def fail(*args, **kwargs):
        raise ZeroDivisionError("defect")

    monkeypatch.setattr(AdditionalInformationPayload, "from_bytes", fail)
    scheduler = make_scheduler(OmniScheduler)
    scheduler.add_request(ar_request("a", raw=payload().to_bytes()))
    _, results = step(scheduler)
    assert results["a"].finish_reason == FinishReason.ABORT
    assert results["a"].stop_reason == "invalid_payload: internal error while reading the payload"
    assert "ZeroDivisionError" in caplog.text


def test_values_of_a_bad_payload_are_not_logged(make_scheduler, ar_request, step, caplog):
    canary = "CANARY-7f3a"
    raw = AdditionalInformationPayload.from_mapping({"secret": [canary]}).to_bytes()[:-1] + b"\xff"
    scheduler = make_scheduler(OmniScheduler)
    scheduler.add_request(ar_request("a", raw=raw))
    output, results = step(scheduler)
    said = caplog.text + str(results["a"].stop_reason) + repr(output.scheduled_new_reqs[0].payload_error)
    assert canary not in said


def test_each_client_hears_of_its_own_request(make_scheduler, ar_request, run_step):
    scheduler = make_scheduler(OmniScheduler)
    scheduler.add_request(ar_request("bad", raw=b"", client=3))
    output = scheduler.schedule()
    results = scheduler.update_from_output(output, run_step(scheduler, output))
    assert [result.request_id for result in results[3].outputs] == ["bad"]


def test_client_that_left_is_not_told_again(make_scheduler, ar_request, run_step):
    scheduler = make_scheduler(OmniScheduler)
    scheduler.add_request(ar_request("bad", raw=b""))
    output = scheduler.schedule()
    scheduler.finish_requests("bad", RequestStatus.FINISHED_ABORTED)
    assert scheduler.update_from_output(output, run_step(scheduler, output)) == {}
    assert "bad" not in scheduler._early_ends


def test_rejecting_unknown_requests_is_ignored(make_scheduler, step):
    scheduler = make_scheduler(OmniScheduler)
    scheduler.reject("nobody", "reason")
    assert step(scheduler)[1] == {}


def test_async_scheduler_ends_a_request_that_is_in_flight_twice(make_scheduler, ar_request, payload, run_step):
    """As with async_scheduling, the second step is scheduled before the first one's output arrives."""
    scheduler = make_scheduler(OmniAsyncScheduler)
    scheduler.add_request(ar_request("bad", raw=b""))
    scheduler.add_request(ar_request("good", raw=payload().to_bytes(), max_tokens=4))
    first = scheduler.schedule()
    first_answer = run_step(scheduler, first)
    second = scheduler.schedule()
    second_answer = run_step(scheduler, second)
    assert "bad" in second.num_scheduled_tokens
    results = scheduler.update_from_output(first, first_answer)[0].outputs
    assert {result.request_id: result.finish_reason for result in results} == {"good": None, "bad": FinishReason.ABORT}
    results = scheduler.update_from_output(second, second_answer)[0].outputs
    assert [result.request_id for result in results] == ["good"]
    assert "bad" in scheduler.schedule().finished_req_ids


def test_freed_blocks_come_back(make_scheduler, ar_request, step):
    scheduler = make_scheduler(OmniScheduler)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    scheduler.add_request(ar_request("bad", tokens=40, raw=b""))
    step(scheduler)
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
