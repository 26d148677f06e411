"""Hooks of a model in a real engine: publishing chosen positions of a layer, and acting on sampled tokens.

Under asynchronous scheduling, the tests overwrite the model's output and its input ids as soon as a step is sampled
(support/engines/async_on_cpu.py), and the tokens reach the host one step later. A hook that ran after `_sample` had
returned would see garbage.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from omni_stage.errors import ConfigurationError
from omni_stage.models.qwen3_omni.talker.model import FrameCodes
from omni_stage.vllm_adapter.hooks import ScheduledSpan
from support.engines.async_on_cpu import SCHEDULING, async_scheduling, text_engine
from support.engines.tiny_text import Job, Reference, TextEngine, prompt_of, write_text_checkpoint
from support.engines.toy_models import register_toy_models

pytestmark = pytest.mark.engine

CAPTURED = {"capture_rows": True}
ARCHITECTURE = "ToyPredictor"
"""The model class of the fixtures `checkpoint`, `reference` and `engine` (conftest.py)."""
TOLERANCE = 1e-4


def test_a_model_acts_on_each_sampled_token_once(engine: TextEngine, reference: Reference) -> None:
    # A prompt of 70 tokens takes three prefill steps. vLLM discards what it samples in the first two.
    # The other requests decode in the same batches.
    jobs = {"short": Job(prompt_of(12)), "chunked": Job(prompt_of(70, 1)), "tiny": Job(prompt_of(1, 2), max_tokens=30)}
    acted = engine.runner.get_model().__dict__.setdefault("acted", [])
    acted.clear()
    runs = engine.run(jobs)
    for name, run in runs.items():
        job = jobs[name]
        assert run.token_ids == reference.generate(job.prompt, job.max_tokens)
        tokens = torch.tensor(run.token_ids)
        assert torch.cat(run.tensors["codes"]).tolist() == torch.stack([tokens * 2, tokens + 1000], dim=1).tolist()
        hidden, _ = reference.hidden(job.prompt + run.token_ids[:-1])
        expected = hidden[len(job.prompt) - 1 :]
        torch.testing.assert_close(torch.cat(run.tensors["states"]), expected, atol=TOLERANCE, rtol=0)
        assert "rows" not in run.tensors
    # The hook saw whole batches, and each kept token once: no discarded token of a prefill chunk, and none twice.
    assert sum(len(step) for step in acted) == sum(job.max_tokens for job in jobs.values())
    assert max(len(step) for step in acted) == len(jobs)


def test_a_model_that_acts_after_sampling_keeps_no_rows(checkpoint: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TextEngine(checkpoint, {**CAPTURED, "rows_cache_bytes": 1}, enable_prefix_caching=True)
    assert caught.value.details.field == "enable_prefix_caching"


def test_what_is_made_of_tokens_comes_with_them(engine: TextEngine) -> None:
    run = engine.run({"a": Job(prompt_of(40))})["a"]
    assert [len(codes) for codes in run.tensors["codes"]] == [1] * 12


def test_only_requests_that_ask_get_it(engine: TextEngine) -> None:
    runs = engine.run({"asks": Job(prompt_of(20)), "does not": Job(prompt_of(20, 3), want_rows=False)})
    assert len(runs["asks"].tensors["codes"]) == 12
    assert runs["does not"].tensors == {}


@pytest.mark.parametrize("kind", SCHEDULING)
def test_preempted_requests_are_acted_on_once(checkpoint: Path, reference: Reference, kind: str) -> None:
    with text_engine(checkpoint, kind, CAPTURED, num_gpu_blocks_override=7, max_model_len=128) as engine:
        preempted = engine.watch_preemptions()
        jobs = {f"r{index}": Job(prompt_of(20, index), max_tokens=50) for index in range(4)}
        runs = engine.run(jobs)
    assert preempted
    for name, run in runs.items():
        assert run.token_ids == reference.generate(jobs[name].prompt, 50)
        assert torch.cat(run.tensors["codes"])[:, 0].tolist() == [2 * token for token in run.token_ids]


@pytest.mark.parametrize("kind", SCHEDULING)
def test_some_positions_of_a_layer(tmp_path: Path, kind: str) -> None:
    register_toy_models()
    directory = write_text_checkpoint(tmp_path / "layers", architecture="ToyLayers")
    reference = Reference(directory)
    jobs = {"short": Job(prompt_of(7)), "chunked": Job(prompt_of(45, 1), max_tokens=9)}
    with text_engine(directory, kind, CAPTURED) as engine:
        runs = engine.run(jobs)
    for name, run in runs.items():
        computed = run.token_ids[:-1]
        assert torch.cat(run.tensors["token_ids"]).tolist() == computed[::2]
        ids = torch.tensor([jobs[name].prompt + computed])
        with torch.no_grad():
            layer = reference.model(ids, output_hidden_states=True).hidden_states[1][0]
        expected = layer[len(jobs[name].prompt) :][::2]
        torch.testing.assert_close(torch.cat(run.tensors["layer"]), expected, atol=TOLERANCE, rtol=0)


def test_codes_of_frames_are_stored_without_waiting_for_the_device() -> None:
    """async_scheduling checks the copies of the table's indices."""
    with async_scheduling():
        codes = FrameCodes(3, torch.device("cpu"))
        codes.write(["a", "b"], [5, 9], torch.tensor([[1, 2, 3], [4, 5, 6]]))
        places = codes.find([ScheduledSpan("b", 8, 2, 0), ScheduledSpan("a", 5, 1, 2)])
        assert places.tokens == [1, 2]
        assert codes.read(places).tolist() == [[4, 5, 6], [1, 2, 3]]
