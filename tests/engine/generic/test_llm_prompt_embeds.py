"""One generic/llm engine with prompt embeddings and prefix caching: embeddings, priority and cache salts reach vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_stage.engine.vllm_engine import VllmStageEngine
from omni_stage.errors import InvalidRequestError, InvalidTensorError, PromptTooLongError
from omni_stage.models.component import FinishReason, StageRequest, UserPrompt
from omni_stage.payloads import PromptEmbedsPayload
from omni_stage.vllm_adapter.core.inproc import InprocEngineCore
from support.engines.one_stage import collect, configure, running, token_ids
from support.models.generic_checkpoint import write_tiny_text_checkpoint
from support.processes.polling import until

pytestmark = pytest.mark.engine

GREEDY = SamplingDefaults(temperature=0.0, max_tokens=16, ignore_eos=True)
BLOCK = 32
IDS = [5, 9, 17, 40, 41, 42, 43, 8]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_text_checkpoint(tmp_path_factory.mktemp("tiny-text"), seed=3)


def embeddings_of(checkpoint: Path, ids: list[int]) -> torch.Tensor:
    with safe_open(checkpoint / "model.safetensors", "pt") as weights:
        return weights.get_tensor("model.embed_tokens.weight")[ids]


def transformers_tokens(checkpoint: Path, embeds: torch.Tensor) -> list[int]:
    """Returns the greedy tokens of transformers' generate() on embeddings."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    output = model.generate(inputs_embeds=embeds[None], do_sample=False, max_new_tokens=16, eos_token_id=None)
    return output[0].tolist()


def make_config(checkpoint: Path) -> StageConfig:
    return configure(
        "generic/llm",
        checkpoint,
        max_model_len=256,
        max_num_seqs=2,
        kv_cache_memory_mib=8,
        enforce_eager=True,
        block_size=BLOCK,
        enable_prefix_caching=True,
        enable_prompt_embeds=True,
    )


def embeds_prompt(rows: torch.Tensor) -> UserPrompt:
    return UserPrompt(prompt_embeds=PromptEmbedsPayload.from_tensor(rows))


def ask(name: str, prompt: UserPrompt, sampling: SamplingDefaults = GREEDY, **more: Any) -> StageRequest:
    return StageRequest(request_id=name, source=prompt, sampling=sampling, **more)


async def tokens_of(engine: VllmStageEngine, request: StageRequest) -> list[int]:
    return token_ids(await collect(engine, request))


@pytest.mark.parametrize(
    "in_process",
    # Every pipeline with media in tests/pipeline also passes tensors to an engine in another process.
    [pytest.param(True, id="in-process"), pytest.param(False, id="multi-process", marks=pytest.mark.full)],
)
async def test_one_engine(checkpoint: Path, in_process: bool) -> None:
    async with running(make_config(checkpoint), in_process=in_process) as engine:
        assert isinstance(engine, VllmStageEngine)
        assert engine.prompt_embeds is not None
        assert (engine.prompt_embeds.row_shape, engine.prompt_embeds.dtype) == ((128,), "float32")
        await check_embeddings(engine, checkpoint)
        await check_refusals(engine)
        await check_priorities(engine)
        if in_process:
            # vLLM's AsyncLLM puts its outputs into queues, so the function that this check wraps does not return them.
            await check_cache_salts(engine)


async def check_embeddings(engine: VllmStageEngine, checkpoint: Path) -> None:
    rows = embeddings_of(checkpoint, IDS)
    # A request of token ids and one of embeddings share a batch.
    by_ids, by_rows = await asyncio.gather(
        tokens_of(engine, ask("ids", UserPrompt(token_ids=IDS))), tokens_of(engine, ask("rows", embeds_prompt(rows)))
    )
    assert by_rows == by_ids
    # Rows that are no token's embedding, in a prompt longer than a block: compared with transformers and with vLLM.
    torch.manual_seed(0)
    other = embeddings_of(checkpoint, IDS * 6) + 0.05 * torch.randn(48, 128)
    steps = await collect(engine, ask("other", embeds_prompt(other)))
    ours = [token for step in steps for token in step.token_ids]
    assert ours == transformers_tokens(checkpoint, other)
    assert ours == await vllm_tokens(engine, other)
    assert len(steps[0].prompt_token_ids or ()) == 48
    assert steps[-1].finish_reason is FinishReason.LENGTH
    # Embeddings of another dtype are cast to the engine's dtype.
    half = other.to(torch.bfloat16)
    assert await tokens_of(engine, ask("half", embeds_prompt(half))) == transformers_tokens(checkpoint, half.float())
    # Without max_tokens the reply continues to max_model_len.
    endless = SamplingDefaults(temperature=0.0, ignore_eos=True)
    assert len(await tokens_of(engine, ask("endless", embeds_prompt(rows), endless))) == 256 - len(IDS)


async def vllm_tokens(engine: VllmStageEngine, rows: torch.Tensor) -> list[int]:
    """Returns the tokens that vLLM samples for its own EmbedsPrompt, without omnipipeline's lowering of requests."""
    from vllm import SamplingParams
    from vllm.inputs import EmbedsPrompt
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    async with aclosing(engine._core.stream("vllm", EmbedsPrompt(prompt_embeds=rows), params)) as outputs:
        return [token async for output in outputs for token in output.token_ids]


async def check_refusals(engine: VllmStageEngine) -> None:
    cases: list[tuple[UserPrompt, SamplingDefaults, type[Exception], str]] = [
        (embeds_prompt(torch.ones(3, 64)), GREEDY, InvalidTensorError, "the model takes 128"),
        (embeds_prompt(torch.ones(256, 128)), GREEDY, PromptTooLongError, "at most 255"),
        (
            embeds_prompt(torch.ones(3, 128)),
            SamplingDefaults(repetition_penalty=1.1),
            InvalidRequestError,
            "repetition_penalty to 1",
        ),
    ]
    for prompt, sampling, error, message in cases:
        with pytest.raises(error, match=message):
            await collect(engine, ask("refused", prompt, sampling))


async def check_cache_salts(engine: VllmStageEngine) -> None:
    """Only requests with the same salt share cached blocks. The prompt has two full blocks that can be hit."""
    processor = engine._core._llm.output_processor  # type: ignore[attr-defined]
    process_outputs, cached = processor.process_outputs, {}

    def watch(*args: Any, **kwargs: Any) -> Any:
        processed = process_outputs(*args, **kwargs)
        for output in processed.request_outputs:
            cached.setdefault(output.request_id, output.num_cached_tokens)
        return processed

    processor.process_outputs = watch
    try:
        prompt = UserPrompt(token_ids=[7 + index % 90 for index in range(2 * BLOCK + 5)])
        salts = {"a1": "a", "b1": "b", "none1": "", "a2": "a", "b2": "b", "none2": ""}
        answers = {name: await tokens_of(engine, ask(name, prompt, cache_salt=salt)) for name, salt in salts.items()}
        rows = embeds_prompt(torch.linspace(-1, 1, 40 * 128).reshape(40, 128))
        for name, salt in {"rows-a1": "a", "rows-b1": "b", "rows-a2": "a"}.items():
            await tokens_of(engine, ask(name, rows, cache_salt=salt))
    finally:
        processor.process_outputs = process_outputs
    hit = 2 * BLOCK
    expected = {"a1": 0, "b1": 0, "none1": 0, "a2": hit, "b2": hit, "none2": hit} | {
        "rows-a1": 0,
        "rows-b1": 0,
        "rows-a2": BLOCK,
    }
    # `cached` may also name an abandoned request of an earlier check, which can still give an output.
    assert {name: cached.get(name) for name in expected} == expected
    assert len({tuple(tokens) for tokens in answers.values()}) == 1


@asynccontextmanager
async def scheduler_held(engine: VllmStageEngine) -> AsyncIterator[None]:
    """Pauses the engine's scheduler: inside the context requests only queue up."""
    core: Any = engine._core
    if not isinstance(core, InprocEngineCore):
        await core._llm.pause_generation(mode="keep", clear_cache=False)
        yield
        await core._llm.resume_generation()
        return
    inner = core.llm.engine_core.engine_core
    await asyncio.wrap_future(core._thread.submit(partial(inner.pause_scheduler, "keep", False)))
    yield
    await asyncio.wrap_future(core._thread.submit(inner.resume_scheduler))


async def check_priorities(engine: VllmStageEngine) -> None:
    """Queued requests start by priority, lowest number first, and in order of arrival among equals."""
    known = engine._core._llm.output_processor.request_states  # type: ignore[attr-defined]
    begun: list[str] = []

    async def run(name: str, priority: int) -> None:
        async with aclosing(engine.generate(ask(name, UserPrompt(token_ids=[3]), priority=priority))) as steps:
            async for _ in steps:
                begun.append(name)
                break

    # An abandoned request of an earlier check may still be in the table.
    await until(lambda: not known)
    priorities = {"late": 5, "first of equals": 0, "second of equals": 0, "early": -5}
    waiting = []
    async with scheduler_held(engine):
        for name, priority in priorities.items():
            waiting.append(asyncio.create_task(run(name, priority)))
            await until(lambda: len(known) == len(waiting))
    await asyncio.gather(*waiting)
    assert begun == ["early", "first of equals", "second of equals", "late"]
