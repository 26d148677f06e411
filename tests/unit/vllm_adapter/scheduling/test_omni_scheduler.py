"""OmniScheduler with vLLM's real schedulers: the order of requests, their payloads, and limits."""

from __future__ import annotations

import logging
from dataclasses import fields

import pytest
import torch
from vllm.config import SchedulerConfig
from vllm.logging_utils import dump_input
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from omni_stage.errors import ConfigurationError, InvalidTensorError
from omni_stage.payloads import DEFAULT_LIMITS
from omni_stage.payloads.additional_information import OMNI_LATE_KEY
from omni_stage.vllm_adapter.diffusion.scheduler import DiffusionScheduler
from omni_stage.vllm_adapter.scheduling.payloads import OmniNewRequestData
from omni_stage.vllm_adapter.scheduling.playback import PACE_KEY
from omni_stage.vllm_adapter.scheduling.scheduler import OmniAsyncScheduler, OmniScheduler
from omni_stage.vllm_adapter.wiring.names import scheduler_cls
from support.engines.scheduler_classes import BOTH


@pytest.mark.parametrize(
    ("kind", "overlaps", "ours", "stock"),
    [
        ("autoregressive", False, OmniScheduler, Scheduler),
        ("autoregressive", True, OmniAsyncScheduler, AsyncScheduler),
        ("diffusion", False, DiffusionScheduler, Scheduler),
    ],
)
def test_vllm_builds_our_scheduler_for_each_kind_of_stage(kind, overlaps, ours, stock, make_scheduler, ar_request):
    """vLLM finds our class by the name in our arguments. The class then schedules the same step as vLLM's own."""
    config = SchedulerConfig.default_factory(scheduler_cls=scheduler_cls(kind, overlaps), async_scheduling=overlaps)
    built = config.get_scheduler_cls()
    assert built is ours
    steps = []
    for scheduler in (make_scheduler(built), make_scheduler(stock)):
        scheduler.add_request(ar_request("a", tokens=9))
        steps.append(scheduler.schedule())
    assert steps[0].num_scheduled_tokens == steps[1].num_scheduled_tokens == {"a": 9}
    assert steps[0].scheduled_new_reqs[0].block_ids == steps[1].scheduled_new_reqs[0].block_ids


@BOTH
def test_lower_priority_numbers_go_first_and_equals_keep_their_order(
    scheduler_class, make_scheduler, ar_request, new_ids
):
    scheduler = make_scheduler(scheduler_class, max_num_seqs=3)
    for name, priority in {"late": 7, "first": 0, "second": 0, "early": -1}.items():
        request = ar_request(name)
        request.priority = priority
        scheduler.add_request(request)
    assert new_ids(scheduler.schedule()) == ["early", "first", "second"]


@BOTH
@pytest.mark.parametrize("pace", [None, "playback"])
def test_a_caller_with_one_request_passes_most_of_a_caller_with_many(
    scheduler_class, make_scheduler, ar_request, new_ids, pace
):
    """A request counts as later by what it carries; the many keep their order, and the first of them goes first."""
    scheduler = make_scheduler(
        scheduler_class,
        max_num_seqs=3,
        additional_config={} if pace is None else {PACE_KEY: {"tokens_per_second": 2.0}},
    )
    for name, late_s in {"many-0": 0.0, "many-1": 1.0, "many-2": 2.0, "many-3": 3.0, "one": 0.0}.items():
        request = ar_request(name)
        request.sampling_params.extra_args = {OMNI_LATE_KEY: late_s} if late_s else None
        scheduler.add_request(request)
    assert new_ids(scheduler.schedule()) == ["many-0", "one", "many-1"]


@BOTH
@pytest.mark.parametrize(("other_calls", "running"), [(False, 8), (True, 7)])
def test_a_client_with_many_long_answers_leaves_a_place_while_others_call(
    scheduler_class, make_scheduler, ar_request, run_step, other_calls, running
):
    """All places would be taken for minutes, because answers that run are not interrupted."""
    scheduler = make_scheduler(scheduler_class, max_num_seqs=8, kv_blocks=400)

    def add(name, late_s=0.0):
        request = ar_request(name, max_tokens=20)
        request.sampling_params.extra_args = {OMNI_LATE_KEY: late_s} if late_s else None
        scheduler.add_request(request)

    def step():
        output = scheduler.schedule()
        scheduler.update_from_output(output, run_step(scheduler, output))

    add("many-0")
    add("many-1", 1.0)
    if other_calls:
        add("one")
        step()
        scheduler.finish_requests("one", RequestStatus.FINISHED_ABORTED)
    for number in range(2, 20):
        add(f"many-{number}", float(number))
    step()
    assert len(scheduler.running) == running
    add("two")
    step()
    assert len(scheduler.running) == 8
    assert (scheduler.requests["two"].status == RequestStatus.RUNNING) is other_calls


@BOTH
def test_the_least_urgent_request_gives_up_its_memory(scheduler_class, make_scheduler, ar_request, run_step):
    """Two requests fill the KV cache. When one needs another block, the less urgent one is preempted."""
    scheduler = make_scheduler(scheduler_class, kv_blocks=5)
    # With the policy "fcfs", vLLM would preempt the request that came last.
    for name, priority in {"patient": 5, "urgent": 0}.items():
        request = ar_request(name, tokens=31, max_tokens=20)
        request.priority = priority
        scheduler.add_request(request)
    for _ in range(4):
        output = scheduler.schedule()
        scheduler.update_from_output(output, run_step(scheduler, output))
    assert scheduler.requests["patient"].status == RequestStatus.PREEMPTED
    assert scheduler.requests["urgent"].status == RequestStatus.RUNNING


@BOTH
def test_a_request_in_parts_keeps_its_place_in_the_queue(scheduler_class, make_scheduler, ar_request, run_step):
    """vLLM would set the request's arrival time to each part's, although the queue is a heap ordered by that time."""
    scheduler = make_scheduler(scheduler_class)

    def part(arrival):
        request = ar_request("session", max_tokens=1)
        request.resumable, request.arrival_time = True, arrival
        return request

    scheduler.add_request(part(1.0))
    output = scheduler.schedule()
    scheduler.update_from_output(output, run_step(scheduler, output))
    session = scheduler.requests["session"]
    assert session.status == RequestStatus.WAITING_FOR_STREAMING_REQ
    scheduler.add_request(part(50.0))
    assert session.arrival_time == 1.0
    assert session.status == RequestStatus.WAITING
    assert session.num_prompt_tokens > 5


@BOTH
def test_a_request_that_waits_for_its_next_part_is_not_in_the_queue(scheduler_class, make_scheduler, ar_request, step):
    """It waits for the upstream stage, so more replicas of this stage would not serve it sooner."""
    scheduler = make_scheduler(scheduler_class, log_stats=True)
    for name in ("a", "b"):
        session = ar_request(name, max_tokens=1)
        session.resumable = True
        scheduler.add_request(session)
    step(scheduler)
    assert {request.status for request in scheduler.requests.values()} == {RequestStatus.WAITING_FOR_STREAMING_REQ}
    scheduler.add_request(ar_request("queued"))
    scheduler.add_request(session)
    stats = scheduler.make_stats()
    # vLLM exports the sum as vllm:num_requests_waiting. "b" has its next part and waits for a step, as "queued" does.
    assert stats.num_waiting_reqs + stats.num_skipped_waiting_reqs == 2
    assert (stats.num_waiting_reqs, stats.num_running_reqs) == (1, 0)


@BOTH
def test_payload_reaches_the_worker_and_no_field_is_lost(scheduler_class, make_scheduler, ar_request, payload):
    stock_class = scheduler_class.__bases__[1]
    stock, omni = make_scheduler(stock_class), make_scheduler(scheduler_class)
    raw = payload().to_bytes()
    stock.add_request(ar_request("a", raw=raw))
    omni.add_request(ar_request("a", raw=raw))
    (expected,), (actual,) = stock.schedule().scheduled_new_reqs, omni.schedule().scheduled_new_reqs
    assert type(expected) is NewRequestData
    assert isinstance(actual, OmniNewRequestData)
    assert actual.additional_information == payload()
    assert actual.payload_error == ""
    for item in fields(NewRequestData):
        if item.name != "sampling_params":
            assert getattr(actual, item.name) == getattr(expected, item.name), item.name
    assert actual.sampling_params.extra_args == expected.sampling_params.extra_args


@BOTH
def test_nothing_is_copied_when_nothing_is_to_be_enriched(scheduler_class, make_scheduler, ar_request, monkeypatch):
    made = []
    original = NewRequestData.from_request.__func__

    def spy(cls, *args, **kwargs):
        made.append(original(cls, *args, **kwargs))
        return made[-1]

    monkeypatch.setattr(NewRequestData, "from_request", classmethod(spy))
    scheduler = make_scheduler(scheduler_class)
    for name in ("a", "b"):
        scheduler.add_request(ar_request(name))
    new = scheduler.schedule().scheduled_new_reqs
    assert len(new) == len(made) == 2
    assert all(actual is stock for actual, stock in zip(new, made, strict=True))


def test_only_requests_with_a_payload_are_enriched(make_scheduler, ar_request, payload):
    scheduler = make_scheduler(OmniScheduler)
    scheduler.add_request(ar_request("plain"))
    scheduler.add_request(ar_request("rich", raw=payload().to_bytes()))
    assert [type(data) for data in scheduler.schedule().scheduled_new_reqs] == [NewRequestData, OmniNewRequestData]


@BOTH
def test_a_step_that_fails_is_not_logged(scheduler_class, make_scheduler, ar_request, payload, monkeypatch, caplog):
    """vLLM's engine core would log the step's sampling parameters, which hold stop strings and our payload's bytes."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)  # to caplog
    scheduler = make_scheduler(scheduler_class)
    caplog.clear()
    request = ar_request("a", raw=payload().to_bytes())
    request.sampling_params.stop = ["a client's word"]
    scheduler.add_request(request)
    dump_input.dump_engine_exception(scheduler.vllm_config, scheduler.schedule(), None)
    assert caplog.text == ""


def test_values_are_shared_not_copied(make_scheduler, ar_request, payload):
    scheduler = make_scheduler(OmniScheduler)
    request = ar_request("a", raw=payload().to_bytes())
    request.prompt_embeds = torch.ones(5, 4)
    scheduler.add_request(request)
    (data,) = scheduler.schedule().scheduled_new_reqs
    assert data.prompt_embeds is request.prompt_embeds
    assert data.sampling_params is request.sampling_params


def test_resumable_chunk_brings_its_own_payload(make_scheduler, ar_request, payload, step):
    scheduler = make_scheduler(OmniScheduler)
    seen = []
    for fill in (1.0, 2.0):
        request = ar_request("session", raw=payload(fill=fill).to_bytes(), max_tokens=1)
        request.resumable = True
        scheduler.add_request(request)
        output, _ = step(scheduler)
        seen += [float(data.additional_information.tensor("codes")[0, 0]) for data in output.scheduled_new_reqs]
    assert seen == [1.0, 2.0]


def test_limits_come_from_the_configuration(make_scheduler, ar_request, payload, step):
    scheduler = make_scheduler(OmniScheduler, additional_config={"omni_payload_limits": {"max_entries": 1}})
    scheduler.add_request(ar_request("a", raw=payload().to_bytes()))
    _, results = step(scheduler)
    assert "at most 1 are allowed" in results["a"].stop_reason


@pytest.mark.parametrize(
    "limits", [{"max_entries": 0}, {"unheard_of": 1}, {"max_entries": True}, 5], ids=["zero", "unknown", "bool", "int"]
)
def test_wrong_limits_are_a_configuration_error(limits, make_scheduler):
    with pytest.raises(ConfigurationError):
        make_scheduler(OmniScheduler, additional_config={"omni_payload_limits": limits})


def test_from_request(ar_request, payload):
    data = OmniNewRequestData.from_request(ar_request("a", raw=payload().to_bytes()), ([1],), limits=DEFAULT_LIMITS)
    assert data.additional_information == payload()
    assert data.block_ids == ([1],)
    assert (
        OmniNewRequestData.from_request(ar_request("b"), ([1],), limits=DEFAULT_LIMITS).additional_information is None
    )
    with pytest.raises(InvalidTensorError):
        OmniNewRequestData.from_request(ar_request("c", raw=5), ([1],), limits=DEFAULT_LIMITS)
