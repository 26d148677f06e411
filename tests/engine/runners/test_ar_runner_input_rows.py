"""Input rows in a real engine: a toy model that adds them to its input gives transformers' output for the same rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_stage.errors import ConfigurationError, InvalidTensorError
from omni_stage.payloads.input_digests import digest_inputs
from support.engines.async_on_cpu import SCHEDULING, text_engine
from support.engines.tiny_text import HIDDEN, Job, Reference, TextEngine, prompt_of, write_text_checkpoint
from support.engines.toy_models import register_toy_models

pytestmark = pytest.mark.engine

TOLERANCE = 1e-4
CAPTURED = {"capture_rows": True}
ARCHITECTURE = "ToyConditioned"
"""The model class of the fixtures `checkpoint`, `reference` and `engine` (conftest.py)."""


def rows_of(count: int, seed: int = 0) -> torch.Tensor:
    return 0.3 * torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def conditioned(prompt: list[int], rows: torch.Tensor, max_tokens: int = 12) -> Job:
    return Job(prompt, max_tokens, payload={"input_rows": rows})


def check(runs: dict[str, Any], jobs: dict[str, Job], rows: dict[str, torch.Tensor | None], ref: Reference) -> None:
    for name, job in jobs.items():
        assert runs[name].token_ids == ref.generate(job.prompt, job.max_tokens, rows[name]), name
        hidden, _ = ref.hidden(job.prompt + runs[name].token_ids[:-1], rows[name])
        torch.testing.assert_close(runs[name].rows(), hidden, atol=TOLERANCE, rtol=0)


def test_rows_reach_every_position_in_prefill_and_decode(engine: TextEngine, reference: Reference) -> None:
    rows = {
        "more rows than positions": rows_of(60),
        "prefill in chunks": rows_of(75, 1),
        "last row is held": rows_of(5, 2),
        "no rows": None,
    }
    prompts = {name: prompt_of(length, length) for name, length in zip(rows, (12, 70, 20, 9), strict=True)}
    jobs = {name: Job(prompts[name]) if row is None else conditioned(prompts[name], row) for name, row in rows.items()}
    check(engine.run(jobs), jobs, rows, reference)


def test_rows_of_one_request_do_not_reach_the_next(engine: TextEngine, reference: Reference) -> None:
    engine.run({"long": conditioned(prompt_of(32), rows_of(32, 3))})
    jobs = {"plain": Job(prompt_of(32))}
    check(engine.run(jobs), jobs, {"plain": None}, reference)
    store = engine.runner._input_rows
    assert not store.buffer.any()
    assert "long" not in str(store._requests.keys())


def test_a_payload_that_does_not_fit_fails_its_request_alone(engine: TextEngine, reference: Reference) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "width": {"input_rows": rows_of(4)[:, :-1].contiguous()},
        "integers": {"input_rows": torch.ones(4, HIDDEN, dtype=torch.int64)},
        "gap": {"input_rows": rows_of(4), "input_rows_offset": [3]},
        "offset": {"input_rows": rows_of(4), "input_rows_offset": [0, 1]},
        "positions": {"mrope_positions": torch.zeros(4, 2, dtype=torch.int64), "mrope_delta": [0]},
    }
    for name, payload in wrong.items():
        jobs = {name: Job(prompt_of(9), payload=payload, want_rows=False), "good": Job(prompt_of(40, 1))}
        runs = engine.run(jobs)
        assert isinstance(runs[name], InvalidTensorError), name
        check(runs, {"good": jobs["good"]}, {"good": None}, reference)


def test_a_session_fed_in_chunks_equals_one_request(engine: TextEngine, reference: Reference) -> None:
    prompt, rows = prompt_of(12, 4), rows_of(30, 4)
    llm = engine.core.llm
    tokens: list[int] = []
    captured: list[torch.Tensor] = []

    def feed(token_ids: list[int], max_tokens: int, begin: int, end: int) -> None:
        """Submits one chunk and steps the engine until it has sampled `max_tokens`. Nothing else steps this engine."""
        payload = {"input_rows": rows[begin:end], "input_rows_offset": [begin]}
        params = Job(token_ids, max_tokens, payload=payload).params()
        chunk = {"prompt_token_ids": list(token_ids)}  # a copy, because vLLM extends the list that it gets
        request = llm._inputs.process_inputs("s", chunk, params, supported_tasks=llm._tasks, resumable=True)
        llm.engine_core.add_request(request)
        wanted = len(tokens) + max_tokens
        while len(tokens) < wanted:
            for output in llm.engine_core.get_output().outputs:
                tokens.extend(output.new_token_ids)
                captured.append(output.pooling_output)

    feed(prompt, 4, 0, 15)
    # vLLM drops a session's last sampled token when the next chunk arrives, so each chunk begins with that token.
    feed([tokens[-1]], 5, 15, 20)
    feed([tokens[-1]], 10, 20, 30)
    feed([tokens[-1]], 6, 29, 30)
    llm.engine_core.abort_requests(["s"])
    assert tokens == reference.generate(prompt, 25, rows)
    hidden, _ = reference.hidden(prompt + tokens[:-1], rows)
    torch.testing.assert_close(torch.cat(captured), hidden, atol=TOLERANCE, rtol=0)


# Engines of one process share vLLM's process groups, and an engine that shuts down destroys them. So the tests that
# start their own engines come last.


@pytest.mark.parametrize("kind", SCHEDULING)
def test_preempted_requests_keep_their_rows(checkpoint: Path, reference: Reference, kind: str) -> None:
    with text_engine(checkpoint, kind, CAPTURED, num_gpu_blocks_override=7, max_model_len=128) as engine:
        preempted = engine.watch_preemptions()
        rows = {f"r{index}": rows_of(40, index) for index in range(4)}
        jobs = {name: conditioned(prompt_of(20, index), rows[name], 50) for index, name in enumerate(rows)}
        runs = engine.run(jobs)
    assert preempted
    check(runs, jobs, rows, reference)


def test_padding_of_graphs_reaches_nothing(checkpoint: Path, reference: Reference) -> None:
    """Garbage in the padding that CUDA graphs need in a step changes no request's tokens and rows.

    The model's inputs keep their addresses from step to step.
    """
    with text_engine(checkpoint, "asynchronous", CAPTURED) as engine:
        seen = pad_steps(engine.runner, 8)
        rows = {"a": rows_of(9, 1), "b": rows_of(40, 2), "c": None}
        jobs = {"a": conditioned(prompt_of(5), rows["a"]), "b": conditioned(prompt_of(45, 1), rows["b"], 20)}
        jobs["c"] = Job(prompt_of(3, 2))
        runs = engine.run(jobs)
    check(runs, jobs, rows, reference)
    assert {addresses for _, _, addresses in seen} == {seen[0][2]}
    assert {padded % 8 for _, padded, _ in seen} == {0}
    assert any(tokens < padded for tokens, padded, _ in seen)


def pad_steps(runner: Any, multiple: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """Pads the runner's steps from now on to a multiple of `multiple` tokens.

    Returns a list that gets one entry per step: its tokens, its padded tokens, and the addresses of the model's inputs.
    """
    seen: list[tuple[int, int, tuple[int, ...]]] = []
    determine, preprocess = runner._determine_batch_execution_and_padding, runner._preprocess
    forward = runner._model_forward

    def rounded(*args: Any, **kwargs: Any) -> Any:
        mode, descriptor, *rest = determine(*args, **kwargs)
        tokens = -(-descriptor.num_tokens // multiple) * multiple
        return mode, dataclasses.replace(descriptor, num_tokens=tokens), *rest

    def with_garbage(scheduler_output: Any, num_input_tokens: int, *args: Any, **kwargs: Any) -> Any:
        prepared = preprocess(scheduler_output, num_input_tokens, *args, **kwargs)
        tokens, buffer = scheduler_output.total_num_scheduled_tokens, runner._input_rows.buffer
        input_ids, _, positions, *_ = prepared
        assert len(input_ids) == num_input_tokens == positions.shape[-1]
        assert not buffer[tokens:].any(), "rows of padding are zero"
        input_ids[tokens:] = 499
        positions[..., tokens:] = 77
        seen.append((tokens, num_input_tokens, tuple(x.data_ptr() for x in (buffer, input_ids, positions))))
        return prepared

    def forward_with_garbage(*args: Any, **kwargs: Any) -> torch.Tensor:
        hidden = forward(*args, **kwargs)
        hidden[seen[-1][0] :] = float("nan")
        return hidden

    runner._determine_batch_execution_and_padding = rounded
    runner._preprocess = with_garbage
    runner._model_forward = forward_with_garbage
    return seen


@pytest.mark.parametrize("kind", SCHEDULING)
def test_cached_prefixes_are_those_of_equal_rows(checkpoint: Path, reference: Reference, kind: str) -> None:
    """Of requests with one prompt, those whose rows begin alike share what they compute, also when preempted."""
    prompt, known = prompt_of(100), rows_of(100)
    rows = {
        "first": known,
        "same": known.clone(),
        "other": rows_of(100, 1),
        "half": torch.cat([known[:50], rows_of(50, 2)]),
    }
    jobs = {name: digested(prompt, rows[name]) for name in rows}
    settings = {"enable_prefix_caching": True, "num_gpu_blocks_override": 13}
    with text_engine(checkpoint, kind, {"hash_inputs": True}, **settings) as engine:
        computed, new = engine.watch_computed(), {}
        for name, job in jobs.items():
            computed.clear()
            runs = engine.run({name: job})
            assert runs[name].token_ids == reference.generate(prompt, job.max_tokens, rows[name]), name
            new[name] = sum(computed) - job.max_tokens + 1
        preempted = engine.watch_preemptions()
        runs = engine.run({name: dataclasses.replace(job, max_tokens=60) for name, job in jobs.items()})
    assert new == {"first": 100, "same": 100 - 96, "other": 100, "half": 100 - 32}
    assert preempted
    for name, run in runs.items():
        assert run.token_ids == reference.generate(prompt, 60, rows[name]), name


def digested(prompt: list[int], rows: torch.Tensor) -> Job:
    positions = torch.arange(len(prompt))[:, None].repeat(1, 3)
    return Job(prompt, 12, want_rows=False, payload={"input_rows": rows}, digests=digest_inputs(rows, positions))


@pytest.mark.parametrize(
    "omni",
    [
        pytest.param(None, id="rows that the cache does not compare"),
        pytest.param({"capture_rows": True, "hash_inputs": True}, id="rows out that would be missing"),
    ],
)
def test_a_conditioned_model_refuses_prefix_caching(checkpoint: Path, omni: dict[str, Any] | None) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TextEngine(checkpoint, omni, enable_prefix_caching=True)
    assert caught.value.details.field == "enable_prefix_caching"


@pytest.fixture(scope="module")
def mrope_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextEngine]:
    register_toy_models()
    directory = write_text_checkpoint(tmp_path_factory.mktemp("mrope"), architecture="ToyMrope")
    file = directory / "config.json"
    values = json.loads(file.read_text())
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
    file.write_text(json.dumps(values | {"rope_parameters": rope}))
    engine = TextEngine(directory, {"capture_rows": True, "capture_mrope": True})
    yield engine
    engine.close()


def test_mrope_positions_come_from_the_payload_and_go_out_with_the_first_rows(mrope_engine: TextEngine) -> None:
    text = torch.arange(40).repeat(3, 1).t().contiguous()
    image = text.clone()
    image[5:30, 1] //= 2
    payloads: dict[str, dict[str, Any] | None] = {
        "model's own": None,
        "text": {"mrope_positions": text, "mrope_delta": [0]},
        "image": {"mrope_positions": image, "mrope_delta": [-7]},
        "shorter than the prompt": {"mrope_positions": text[:25].contiguous(), "mrope_delta": [0]},
    }
    runs = mrope_engine.run({name: Job(prompt_of(40), payload=payload) for name, payload in payloads.items()})
    for name, run in runs.items():
        assert [len(part) for part in run.tensors["mrope_positions"]] == [40], name
        assert torch.equal(run.tensors["mrope_positions"][0], image if name == "image" else text), name
        assert run.tensors["mrope_delta"][0].tolist() == ([-7] if name == "image" else [0]), name
        assert len(run.rows()) == 51, name
    assert runs["text"].token_ids == runs["model's own"].token_ids == runs["shorter than the prompt"].token_ids
    assert torch.equal(runs["text"].rows(), runs["model's own"].rows())
    assert not torch.allclose(runs["image"].rows()[:40], runs["text"].rows()[:40], atol=1e-2)


def test_a_model_without_input_rows_refuses_them(mrope_engine: TextEngine) -> None:
    runs = mrope_engine.run({"a": Job(prompt_of(5), payload={"input_rows": rows_of(3)}), "b": Job(prompt_of(5))})
    assert isinstance(runs["a"], InvalidTensorError)
    assert len(runs["b"].token_ids) == 12
