"""Captured rows of a real engine: one per position, equal to transformers' hidden states, for every way of batching."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from omni_stage.errors import ConfigurationError
from support.engines.async_on_cpu import SCHEDULING, text_engine
from support.engines.tiny_text import Job, Reference, Run, TextEngine, prompt_of, write_text_checkpoint
from support.engines.toy_models import register_toy_models

pytestmark = pytest.mark.engine

TOLERANCE = 1e-4
CAPTURED = {"capture_rows": True}
ARCHITECTURE = "Qwen2ForCausalLM"
"""The model class of the fixtures `checkpoint`, `reference` and `engine` (conftest.py)."""


def check_hidden(run: Run, job: Job, reference: Reference) -> None:
    """Checks the tokens, and that there is one correct row per computed position.

    The position of the last sampled token is never computed.
    """
    assert run.token_ids == reference.generate(job.prompt, job.max_tokens)
    hidden, _ = reference.hidden(job.prompt + run.token_ids[:-1])
    assert run.rows().shape == hidden.shape
    torch.testing.assert_close(run.rows(), hidden, atol=TOLERANCE, rtol=0)


def test_rows_equal_transformers_with_chunked_prefill_and_batching(engine: TextEngine, reference: Reference) -> None:
    # A prompt of 70 tokens needs three steps of 32; the other requests share those steps.
    jobs = {"short": Job(prompt_of(12)), "chunked": Job(prompt_of(70, 1)), "tiny": Job(prompt_of(1, 2), max_tokens=30)}
    for name, run in engine.run(jobs).items():
        check_hidden(run, jobs[name], reference)


def test_rows_stream_with_their_tokens(engine: TextEngine) -> None:
    run = engine.run({"a": Job(prompt_of(40))})["a"]
    # The rows of all prefill chunks are sent with the first token.
    assert [len(rows) for rows in run.tensors["rows"]] == [40] + [1] * 11


def test_only_requests_that_ask_get_rows(engine: TextEngine, reference: Reference) -> None:
    jobs = {"asks": Job(prompt_of(20)), "does not": Job(prompt_of(20, 3), want_rows=False)}
    runs = engine.run(jobs)
    check_hidden(runs["asks"], jobs["asks"], reference)
    assert runs["does not"].tensors == {}
    assert runs["does not"].token_ids == reference.generate(prompt_of(20, 3), 12)


def test_an_aborted_request_leaves_nothing_behind(engine: TextEngine, reference: Reference) -> None:
    jobs = {"aborted": Job(prompt_of(50), max_tokens=150), "stays": Job(prompt_of(9), max_tokens=20)}
    runs = engine.run(jobs, on_output=lambda name, run: name == "aborted" and len(run.token_ids) >= 2)
    check_hidden(runs["stays"], jobs["stays"], reference)
    # The runner learns of ended requests in its next step.
    engine.run({"next": Job(prompt_of(3), want_rows=False)})
    assert not engine.runner._ledger


@pytest.mark.parametrize("kind", SCHEDULING)
def test_preempted_requests_give_each_row_once(checkpoint: Path, reference: Reference, kind: str) -> None:
    # Four requests of 70 tokens need 12 blocks of 32. There are 7, of which vLLM keeps one.
    with text_engine(checkpoint, kind, CAPTURED, num_gpu_blocks_override=7, max_model_len=128) as engine:
        preempted = engine.watch_preemptions()
        jobs = {f"r{index}": Job(prompt_of(20, index), max_tokens=50) for index in range(4)}
        runs = engine.run(jobs)
    assert preempted
    for name, run in runs.items():
        check_hidden(run, jobs[name], reference)


@pytest.mark.parametrize("kind", SCHEDULING)
def test_reused_prefixes_give_each_row_once(checkpoint: Path, reference: Reference, kind: str) -> None:
    """Turns of four conversations, computed and reused, with so few blocks that requests are preempted."""
    kept = {"capture_rows": True, "rows_cache_bytes": 1 << 20}
    tight = {"num_gpu_blocks_override": 15, "enable_prefix_caching": True}
    with text_engine(checkpoint, kind, kept, **tight) as engine:
        preempted = engine.watch_preemptions()
        cache = engine.scheduler._prefixes.cache
        reused: list[int] = []
        take = cache.take
        cache.take = lambda chain: (reused.append(len(chain)), take(chain))[1]
        talks = {f"r{index}": prompt_of(40, index) for index in range(4)}
        for turn in range(3):
            jobs = {f"{name}.{turn}": Job(list(prompt), max_tokens=30) for name, prompt in talks.items()}
            for (name, prompt), run in zip(talks.items(), engine.run(jobs).values(), strict=True):
                check_hidden(run, jobs[f"{name}.{turn}"], reference)
                prompt += [*run.token_ids, *prompt_of(5, turn)]
    assert preempted
    assert sum(reused) > 4, "blocks of earlier turns"


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    register_toy_models()
    return write_text_checkpoint(tmp_path_factory.mktemp("embeddings"), architecture="ToyEmbeddings")


def test_a_model_says_what_it_publishes(embeddings: Path, reference: Reference) -> None:
    placeholders = [17, 500, 511]
    engine = TextEngine(embeddings, CAPTURED)
    jobs = {"a": Job([5, 17, 17, 500, 6, 511, 8]), "b": Job(prompt_of(45))}
    runs = engine.run(jobs)
    engine.close()
    for name, run in runs.items():
        token_ids = torch.tensor(jobs[name].prompt + run.token_ids[:-1])
        hidden, _ = reference.hidden(token_ids.tolist())
        keep = ~torch.isin(token_ids, torch.tensor(placeholders))
        expected = hidden + reference.embedding[token_ids] * keep[:, None]
        torch.testing.assert_close(run.rows(), expected, atol=TOLERANCE, rtol=0)


def test_a_model_that_publishes_refuses_prompt_embeds(embeddings: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TextEngine(embeddings, CAPTURED, enable_prompt_embeds=True)
    assert caught.value.details.field == "enable_prompt_embeds"


def test_an_engine_without_capture_ignores_the_wish(checkpoint: Path) -> None:
    engine = TextEngine(checkpoint)
    run = engine.run({"a": Job(prompt_of(5))})["a"]
    engine.close()
    assert len(run.token_ids) == 12
    assert run.tensors == {}


@pytest.mark.parametrize(
    ("omni", "overrides", "field"),
    [
        pytest.param({"capture_rows": True}, {"enable_prefix_caching": True}, "enable_prefix_caching", id="cache"),
        pytest.param({"capture_rows": True, "capture_mrope": True}, {}, "capture_mrope", id="no M-RoPE"),
        pytest.param({"capture_rows": "all"}, {}, "additional_config.omni.capture_rows", id="unknown kind"),
    ],
)
def test_settings_that_cannot_give_rows_are_refused(
    checkpoint: Path, omni: dict[str, object], overrides: dict[str, object], field: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TextEngine(checkpoint, omni, **overrides)
    assert caught.value.details.field == field
