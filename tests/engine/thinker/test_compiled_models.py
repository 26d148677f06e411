"""Thinker and talker compiled on the CPU: one graph serves every length and answers like the uncompiled model.

The tests use torch.compile's "eager" backend: it traces the model and runs it as a graph with symbolic lengths, but
compiles no C++, which would take minutes. vLLM chooses that backend if VLLM_CPU_CI_ENV is set (vllm/platforms/cpu.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from torch._dynamo.utils import counters

from omni_proto.stage_config import SamplingDefaults
from omni_stage.exchange import StructuredText
from omni_stage.models.component import StageRequest, UserPrompt
from omni_stage.vllm_adapter.ar.runner import OmniARRunnerMixin
from omni_stage.vllm_adapter.ar.warm_steps import run_steps
from support.engines.async_on_cpu import stage_scheduling
from support.engines.omni_stages import ROWS_TOLERANCE, OmniStages, run_omni_stages
from support.engines.one_stage import collect, configure, running, token_ids
from support.engines.toy_models import register_toy_models, use_architecture
from support.models.generic_checkpoint import write_tiny_text_checkpoint
from support.models.reference import ReferencePrompt

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

GREEDY = {"temperature": 0.0, "repetition_penalty": 1.0}
TEXTS = ("?", "Hello", "What is this?", "Tell me about the weather in a few words, and then in a few more.")


@pytest.fixture(scope="module", autouse=True)
def _traced_only() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_CI_ENV", "1")
        yield


def core_of(stages: OmniStages, stage: str) -> Any:
    return stages.engines[stage]._core  # type: ignore[attr-defined]


def runner_of(stages: OmniStages, stage: str) -> Any:
    return core_of(stages, stage).llm.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stages(make_tiny_checkpoint: Callable[..., Path]) -> AsyncIterator[OmniStages]:
    """Compiled thinker and talker. Prompts of more than 48 tokens take several steps."""
    counters.clear()
    arguments = {"enforce_eager": False, "max_num_batched_tokens": 48}
    async with run_omni_stages(make_tiny_checkpoint(0, "gqa"), "thinker", "talker", **arguments) as running:
        yield running


async def test_one_graph_serves_every_length(stages: OmniStages) -> None:
    """No length is compiled in as a constant. If one were, other lengths would get wrong answers: vLLM drops the guards
    that would cause a recompilation."""
    assert graphs() == 2, "one of the thinker's text model, one of the talker's layers"
    assert not any(engine.compiled_check_failed for engine in stages.engines.values())
    for text in TEXTS:
        prompt = ReferencePrompt(text).to_user_prompt()
        thinker = await stages.ask("thinker", prompt, **GREEDY, max_tokens=24, ignore_eos=True)
        talker = await stages.ask("talker", thinker.tensors, **GREEDY, max_tokens=24, ignore_eos=True)
        with runner_of(stages, "thinker").as_written(), runner_of(stages, "talker").as_written():
            own = await stages.ask("thinker", prompt, **GREEDY, max_tokens=24, ignore_eos=True)
            spoken = await stages.ask("talker", own.tensors, **GREEDY, max_tokens=24, ignore_eos=True)
        assert thinker.token_ids == own.token_ids
        torch.testing.assert_close(thinker.tensors["x"], own.tensors["x"], atol=ROWS_TOLERANCE, rtol=0)
        assert talker.token_ids == spoken.token_ids
        assert len(talker.token_ids) == 24
    assert graphs() == 2


async def test_the_compiled_layers_are_what_runs(stages: OmniStages) -> None:
    """The compiled graph runs in every step. Otherwise the test above would compare the eager model with itself."""
    talker = runner_of(stages, "talker")
    layers = talker.get_model().model
    assert layers.compiled
    dispatched: list[str] = []
    dispatch = type(layers)._dispatch_to_compiled_code
    rows = {
        "x": torch.zeros(4, talker.input_row_size),
        "token_ids": torch.zeros(4, dtype=torch.int64),
        "mrope_positions": torch.arange(2)[:, None].repeat(1, 3),
        "mrope_delta": torch.zeros(1, dtype=torch.int64),
    }

    def noting(self: Any) -> Any:
        dispatched.append("step")
        return dispatch(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(layers), "_dispatch_to_compiled_code", noting)
        await stages.ask("talker", rows, **GREEDY, max_tokens=4, ignore_eos=True)
        assert len(dispatched) == 4
        with talker.as_written():
            await stages.ask("talker", rows, **GREEDY, max_tokens=4, ignore_eos=True)
        assert len(dispatched) == 4


async def test_steps_without_requests_change_no_answer(stages: OmniStages) -> None:
    """A GPU stage runs such steps before it is ready, after its check has used the KV cache."""
    prompt = ReferencePrompt(TEXTS[0]).to_user_prompt()
    before = await stages.ask("thinker", prompt, **GREEDY, max_tokens=12, ignore_eos=True)
    for name in stages.engines:
        run_steps(runner_of(stages, name), [1, 17, 48])
    after = await stages.ask("thinker", prompt, **GREEDY, max_tokens=12, ignore_eos=True)
    assert after.token_ids == before.token_ids
    assert [await core_of(stages, name).kernels_compiled() for name in stages.engines] == [0, 0]
    assert graphs() == 2


async def answer(engine: Any, text: str, form: StructuredText | None = None) -> list[int]:
    sampling = SamplingDefaults(temperature=0.0, max_tokens=12, ignore_eos=form is None)
    request = StageRequest(f"ask {text} {form}", UserPrompt(text=text, structured=form), sampling)
    return token_ids(await collect(engine, request))


def note_events(runner: Any, scheduler: Any) -> list[str]:
    """Returns a list that grows by an entry when a step is launched, and when its outputs are read."""
    events: list[str] = []
    execute, update = runner.execute_model, scheduler.update_from_output

    def launch(output: Any, *args: Any, **kwargs: Any) -> Any:
        if output.total_num_scheduled_tokens:
            events.append("launch")
        return execute(output, *args, **kwargs)

    def read(*args: Any, **kwargs: Any) -> Any:
        events.append("read")
        return update(*args, **kwargs)

    runner.execute_model, scheduler.update_from_output = launch, read
    return events


# This test is last: engines of one process share vLLM's process groups, and an engine that shuts down destroys them.


async def test_a_model_that_compiles_to_something_else_is_served_eager(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same model: loaded once, with the graphs that it captured for itself."""
    register_toy_models()
    right = write_tiny_text_checkpoint(tmp_path / "right", seed=3)
    wrong = use_architecture(write_tiny_text_checkpoint(tmp_path / "wrong", seed=3), "ToyMiscompiled")
    loaded: list[Any] = []
    load = OmniARRunnerMixin.load_model

    def note(runner: Any, *args: Any, **kwargs: Any) -> None:
        loaded.append(runner)
        load(runner, *args, **kwargs)

    monkeypatch.setattr(OmniARRunnerMixin, "load_model", note)
    answers, form = [], StructuredText(regex="(Rome|Oslo)")
    for checkpoint, fails in ((right, False), (wrong, True)):
        # The right model runs eager, as the reference for the wrong one.
        args = {"max_model_len": 64, "max_num_seqs": 4, "kv_cache_memory_mib": 8, "enforce_eager": not fails}
        kind = "asynchronous" if fails else "synchronous"
        with stage_scheduling(kind):
            async with running(configure("generic/llm", checkpoint, **args)) as engine:
                assert engine.compiled_check_failed is fails
                assert ("hidden states differ" in caplog.text) is fails
                core = engine._core.llm.engine_core.engine_core
                runner = core.model_executor.driver_worker.worker.model_runner
                assert loaded.pop() is runner
                assert not loaded
                if fails:
                    assert core.batch_queue_size == 1, "no step is launched before the last one has ended"
                    run_steps(runner, [1, 17])
                events = note_events(runner, core.scheduler)
                spoken = [answer(engine, text) for text in ("one two three", "four")]
                answers.append(await asyncio.gather(*spoken, answer(engine, "five", form)))
                assert len(events) > 12
                assert ("launch", "launch") not in set(pairwise(events)), "an eager step delays no earlier output"
    assert answers[0] == answers[1]
