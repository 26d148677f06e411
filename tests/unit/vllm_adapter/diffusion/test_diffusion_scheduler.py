"""DiffusionScheduler with vLLM's real scheduler: detection of diffusion requests, batches, budgets and order."""

from __future__ import annotations

import pytest
import torch
from vllm.pooling_params import PoolingParams
from vllm.v1.engine import FinishReason
from vllm.v1.request import Request, RequestStatus

from omni_stage.errors import ConfigurationError
from omni_stage.payloads.additional_information import OMNI_DUE_KEY
from omni_stage.vllm_adapter.diffusion.scheduler import DiffusionScheduler, find_due, is_diffusion
from omni_stage.vllm_adapter.scheduling.payloads import OmniNewRequestData


def test_detection_is_by_what_the_request_says(ar_request, diffusion_request, payload):
    """A pooling request with an omni payload is a diffusion request. No other request is."""
    raw = payload().to_bytes()
    cases = {
        "pooling with payload": (diffusion_request("a"), True),
        "pooling without payload": (Request("b", [0], None, PoolingParams()), False),
        "pooling with another key": (Request("c", [0], None, PoolingParams(extra_kwargs={"x": raw})), False),
        "sampling": (ar_request("d"), False),
        "sampling with payload": (ar_request("e", raw=raw), False),
    }
    assert {name: is_diffusion(request) for name, (request, _) in cases.items()} == {
        name: expected for name, (_, expected) in cases.items()
    }


def test_one_step_from_start_to_end(make, diffusion_request, payload, step):
    scheduler = make()
    request = diffusion_request("a")
    scheduler.add_request(request)
    output, results = step(scheduler, {"a": torch.arange(6.0)})
    (data,) = output.scheduled_new_reqs
    assert isinstance(data, OmniNewRequestData)
    assert data.additional_information == payload()
    assert output.num_scheduled_tokens == {"a": 1}
    assert torch.equal(results["a"].pooling_output, torch.arange(6.0))
    assert results["a"].finish_reason == FinishReason.STOP
    assert results["a"].stop_reason == "diffusion_done"
    assert request.status == RequestStatus.FINISHED_STOPPED
    assert request.stop_reason == "diffusion_done"
    assert scheduler.requests == {}
    assert scheduler.running == []
    assert "a" in scheduler.schedule().finished_req_ids


def test_no_kv_cache_is_allocated(make, diffusion_request, step):
    scheduler = make()
    assert scheduler.kv_cache_config.kv_cache_groups == []
    for name in "abc":
        scheduler.add_request(diffusion_request(name))
    output, _ = step(scheduler)
    assert [data.block_ids for data in output.scheduled_new_reqs] == [()] * 3
    assert scheduler.kv_cache_manager.usage == 0


def test_beside_a_kv_cache_the_block_is_freed_after_the_step(make_scheduler, diffusion_request, step):
    scheduler = make_scheduler(DiffusionScheduler)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    scheduler.add_request(diffusion_request("a"))
    step(scheduler)
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free


@pytest.mark.parametrize("runner", ["pooling", "generate"])
def test_request_without_tokens_gets_one_placeholder(runner, make, diffusion_request, step):
    scheduler = make(runner=runner)
    scheduler.add_request(diffusion_request("empty", tokens=0))
    output, results = step(scheduler)
    assert output.num_scheduled_tokens == {"empty": 1}
    assert output.scheduled_new_reqs[0].prompt_token_ids == [0]
    assert results["empty"].stop_reason == "diffusion_done"


def test_very_large_embeddings_run_alone_and_do_not_starve(make, diffusion_request, step, new_ids):
    scheduler = make(settings={"embedding_budget_bytes": 4096})
    scheduler.add_request(diffusion_request("small", rows=2))
    scheduler.add_request(diffusion_request("huge", rows=4096))
    scheduler.add_request(diffusion_request("small2", rows=2))
    assert new_ids(step(scheduler)[0]) == ["small"]
    assert new_ids(step(scheduler)[0]) == ["huge"]
    assert new_ids(step(scheduler)[0]) == ["small2"]


def test_several_requests_share_one_step(make, diffusion_request, step):
    scheduler = make()
    for index in range(5):
        scheduler.add_request(diffusion_request(f"r{index}", rows=index + 1))
    output, results = step(scheduler)
    assert list(output.num_scheduled_tokens) == [f"r{index}" for index in range(5)]
    assert {result.stop_reason for result in results.values()} == {"diffusion_done"}
    assert scheduler.get_num_unfinished_requests() == 0


LIMITS = {
    # name: (settings, scheduler arguments, tokens per request, request ids of each step)
    "count": ({"max_batch": 2}, {}, 1, ["ab", "cd", "e"]),
    "sequences of the engine": ({}, {"max_num_seqs": 3}, 1, ["abc", "de"]),
    "work": ({"step_work": 120}, {"max_num_batched_tokens": 1024}, 50, ["ab", "cd", "e"]),
    "work that one request is over": ({"step_work": 30}, {}, 50, list("abcde")),
    "tokens of one step": ({}, {"max_num_batched_tokens": 128}, 50, ["ab", "cd", "e"]),
    "nothing": ({}, {}, 1, ["abcde"]),
}


@pytest.mark.parametrize("name", LIMITS)
def test_batches_keep_within_limits(name, make, diffusion_request, step, new_ids):
    settings, options, tokens, expected = LIMITS[name]
    scheduler = make(settings=settings, **options)
    for request_id in "abcde":
        scheduler.add_request(diffusion_request(request_id, tokens=tokens))
    assert ["".join(new_ids(step(scheduler)[0])) for _ in expected] == expected
    assert scheduler.get_num_unfinished_requests() == 0


def test_byte_budget_is_kept_and_nobody_overtakes(make, diffusion_request, payload, step, new_ids):
    one, three = (len(payload(rows).to_bytes()) for rows in (10, 30))
    scheduler = make(settings={"embedding_budget_bytes": one + three - 1})
    for name, rows in (("a", 10), ("b", 30), ("c", 10), ("d", 10)):
        scheduler.add_request(diffusion_request(name, rows=rows))
    # b does not fit into a's step. c would fit, but must not overtake b.
    assert [new_ids(step(scheduler)[0]) for _ in range(3)] == [["a"], ["b"], ["c", "d"]]


def test_long_requests_run_one_after_another_and_short_ones_share(make, diffusion_request, step, new_ids):
    """A single step with all long requests would last so long that the watchdog would take it for a hang."""
    scheduler = make(settings={"step_work": 80})
    for name in "abcdef":
        scheduler.add_request(diffusion_request(name, tokens=60))
    for name in "xyz":
        scheduler.add_request(diffusion_request(name, tokens=10))
    steps = ["".join(new_ids(step(scheduler)[0])) for _ in range(6)]
    assert steps == ["a", "b", "c", "d", "e", "fxy"]
    assert "".join(new_ids(step(scheduler)[0])) == "z"


def test_a_chunk_of_a_request_is_not_an_end_without_output(make_scheduler, diffusion_request, step):
    """An engine with chunked prefill, as for autoregressive requests, may split placeholder tokens over steps."""
    scheduler = make_scheduler(DiffusionScheduler, max_num_batched_tokens=32)
    scheduler.add_request(diffusion_request("a", tokens=20))
    scheduler.add_request(diffusion_request("b", tokens=20))
    output, results = step(scheduler, {"b": None})
    assert output.num_scheduled_tokens == {"a": 20, "b": 12}
    assert {name: result.stop_reason for name, result in results.items()} == {"a": "diffusion_done"}
    output, results = step(scheduler)
    assert output.num_scheduled_tokens == {"b": 8}
    assert {name: result.stop_reason for name, result in results.items()} == {"b": "diffusion_done"}


def test_bytes_in_flight_count_until_the_output_comes(make, diffusion_request, payload, run_step, new_ids):
    size = len(payload().to_bytes())
    scheduler = make(settings={"embedding_budget_bytes": 2 * size})
    for name in "abc":
        scheduler.add_request(diffusion_request(name))
    first = scheduler.schedule()
    assert new_ids(first) == ["a", "b"]
    assert new_ids(scheduler.schedule()) == []
    scheduler.update_from_output(first, run_step(scheduler, first))
    assert new_ids(scheduler.schedule()) == ["c"]


def test_mixed_queue_keeps_its_order(make_scheduler, ar_request, diffusion_request, step):
    scheduler = make_scheduler(DiffusionScheduler)
    order = ["ar1", "diff1", "ar2", "diff2", "ar3"]
    for name in order:
        scheduler.add_request(ar_request(name) if name.startswith("ar") else diffusion_request(name))
    output, results = step(scheduler)
    assert list(output.num_scheduled_tokens) == order
    assert output.num_scheduled_tokens == {"ar1": 5, "diff1": 1, "ar2": 5, "diff2": 1, "ar3": 5}
    assert {name for name, result in results.items() if result.finish_reason is not None} == {"diff1", "diff2"}
    # The autoregressive requests continue, token by token, to their end.
    for _ in range(3):
        output, results = step(scheduler)
        assert list(output.num_scheduled_tokens) == ["ar1", "ar2", "ar3"]
    assert {result.finish_reason for result in results.values()} == {FinishReason.LENGTH}
    assert scheduler.get_num_unfinished_requests() == 0


def test_blocked_diffusion_lets_others_pass_and_keeps_its_place(
    make_scheduler, ar_request, diffusion_request, step, new_ids
):
    scheduler = make_scheduler(DiffusionScheduler, additional_config={"omni_diffusion": {"max_batch": 1}})
    for name in ("diff1", "diff2", "ar1", "diff3"):
        scheduler.add_request(ar_request(name) if name.startswith("ar") else diffusion_request(name))
    output, _ = step(scheduler)
    assert new_ids(output) == ["diff1", "ar1"]
    assert [request.request_id for request in scheduler.waiting] == ["diff2", "diff3"]
    assert [new_ids(step(scheduler)[0]) for _ in range(2)] == [["diff2"], ["diff3"]]


def test_only_autoregressive_requests_run_as_under_the_stock_scheduler(make_scheduler, ar_request, step):
    traces = []
    for scheduler_class in (DiffusionScheduler, DiffusionScheduler.__bases__[1]):
        scheduler = make_scheduler(scheduler_class, kv_blocks=8, max_num_batched_tokens=32, max_num_seqs=3)
        for index in range(4):
            scheduler.add_request(ar_request(f"r{index}", tokens=20 + index, max_tokens=20))
        trace = []
        while scheduler.get_num_unfinished_requests():
            output, results = step(scheduler)
            tokens = {name: (result.new_token_ids, result.finish_reason) for name, result in results.items()}
            trace.append((dict(output.num_scheduled_tokens), sorted(output.finished_req_ids), tokens))
        traces.append(trace)
    assert traces[0] == traces[1]


def test_urgent_diffusion_requests_go_first(make, diffusion_request, new_ids):
    scheduler = make(settings={"max_batch": 2})
    for name, priority in {"late": 7, "first": 0, "early": -1}.items():
        request = diffusion_request(name)
        request.priority = priority
        scheduler.add_request(request)
    assert new_ids(scheduler.schedule()) == ["early", "first"]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_batch": 0},
        {"max_batch": True},
        {"step_work": 0},
        {"step_work": 1.5},
        {"cuda_graphs": 1},
        {"embedding_budget_bytes": -1},
        {"embedding_budget_bytes": 1.5},
        {"queue_timeout_s": 0},
        {"queue_timeout_s": float("nan")},
        {"queue_timeout_s": float("inf")},
        {"queue_timeout_s": "5"},
        {"max_batches": 1},
        [1],
    ],
    ids=str,
)
def test_wrong_settings_are_a_configuration_error(settings, make):
    with pytest.raises(ConfigurationError):
        make(settings=settings)


def test_the_request_that_is_due_first_comes_first_within_a_priority(make, diffusion_request, step, new_ids):
    scheduler = make(settings={"max_batch": 1})
    now = scheduler.clock()
    for name, due, priority in [
        ("plays long", now + 60, 0),
        ("whole", None, 0),
        ("runs out", now - 1, 0),
        ("first", now - 1e6, 0),
        ("ahead of all", now + 90, -1),
    ]:
        request = diffusion_request(name)
        request.priority = priority
        if due is not None:
            request.pooling_params.extra_kwargs[OMNI_DUE_KEY] = due
        scheduler.add_request(request)
    order = [new_ids(step(scheduler)[0]) for _ in range(5)]
    assert order == [["ahead of all"], ["first"], ["runs out"], ["whole"], ["plays long"]]


@pytest.mark.parametrize("due", [float("nan"), float("inf"), "soon", None])
def test_a_due_time_that_is_none_means_now(diffusion_request, due):
    """A due time that is missing, not finite or not a number counts as now."""
    request = diffusion_request("a")
    request.pooling_params.extra_kwargs[OMNI_DUE_KEY] = due
    assert find_due(request, 7.0) == 7.0
