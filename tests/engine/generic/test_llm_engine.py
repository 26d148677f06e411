"""generic/llm on a real vLLM engine, in this process and in a separate process, compared with transformers."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_stage.engine.factory import build_stage_engine
from omni_stage.engine.vllm_engine import VllmStageEngine
from omni_stage.errors import EngineDeadStageError, InvalidRequestError, ModelExecutionError, PromptTooLongError
from omni_stage.models.component import ChatMessage, FinishReason, StageRequest, StageStep, TextPart, UserPrompt
from support.engines.one_stage import collect, configure, running, token_ids
from support.models.generic_checkpoint import write_tiny_text_checkpoint
from support.processes.polling import PATIENCE_S, until

pytestmark = pytest.mark.engine

PROMPTS = ["Hello, how are you?", "one two three", "The talker", "A pipeline hands tensors from stage to stage."]
GREEDY = SamplingDefaults(temperature=0.0, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_text_checkpoint(tmp_path_factory.mktemp("tiny-text"), seed=3)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> dict[str, list[int]]:
    """Greedy token ids of transformers' generate(), by prompt."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    tokens = {}
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        # eos_token_id=None means the same as ignore_eos. min_new_tokens would change the logits.
        output = model.generate(**inputs, do_sample=False, max_new_tokens=16, eos_token_id=None)
        tokens[prompt] = output[0, inputs["input_ids"].shape[1] :].tolist()
    return tokens


def make_config(checkpoint: Path) -> StageConfig:
    args = {"max_model_len": 256, "max_num_seqs": 8, "kv_cache_memory_mib": 8, "enforce_eager": True, "block_size": 32}
    return configure("generic/llm", checkpoint, **args)


def test_vllm_takes_fp8_for_a_checkpoint_that_is_not_quantized(checkpoint: Path) -> None:
    """Its configuration only: vLLM's CPU build has no kernel that quantizes."""
    config = make_config(checkpoint)
    arguments = config.engine_args.model_copy(update={"quantization": "fp8", "dtype": "bfloat16"})
    engine = build_stage_engine(config.model_copy(update={"engine_args": arguments}), in_process=True)
    assert isinstance(engine, VllmStageEngine)
    assert engine._create_vllm_config().quant_config is not None


def test_a_checkpoint_that_also_holds_mistrals_format(checkpoint: Path, tmp_path: Path) -> None:
    """A clone of one of Mistral's repositories holds both formats. config.json is read, as for every other model."""
    clone = tmp_path / "clone"
    shutil.copytree(checkpoint, clone)
    (clone / "params.json").write_text('{"dim": 8, "n_layers": 1, "vocab_size": 7, "max_position_embeddings": 16}')
    shutil.copyfile(clone / "model.safetensors", clone / "consolidated.safetensors")
    engine = build_stage_engine(make_config(clone), in_process=True)
    assert isinstance(engine, VllmStageEngine)
    assert engine._create_vllm_config().model_config.hf_config.vocab_size > 7


@pytest.fixture(
    scope="module",
    # Every pipeline of tests/pipeline runs its engines in separate processes.
    params=["in-process", pytest.param("multi-process", marks=pytest.mark.full)],
)
def in_process(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "in-process")


def text_request(request_id: str, prompt: UserPrompt, sampling: SamplingDefaults = GREEDY) -> StageRequest:
    return StageRequest(request_id=request_id, source=prompt, sampling=sampling)


async def scheduler_requests(engine: VllmStageEngine) -> int:
    """Returns how many entries the engine's request tables have: the output processor's two and, if the engine runs in
    this process, the scheduler's."""
    core = engine._core
    llm = core._llm
    count = len(llm.output_processor.request_states) + len(llm.output_processor._captures)
    if hasattr(llm.engine_core, "engine_core"):
        count += len(llm.engine_core.engine_core.scheduler.requests)
    return count


async def until_empty(engine: VllmStageEngine) -> int:
    """Waits for the engine to handle aborts. Returns how many entries its request tables still have."""
    deadline = time.monotonic() + PATIENCE_S
    while (left := await scheduler_requests(engine)) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return left


async def test_one_engine_from_start_to_shutdown(
    checkpoint: Path, reference: dict[str, list[int]], in_process: bool
) -> None:
    """One test covers an engine's whole life: an engine belongs to one event loop, and loading it takes seconds."""
    async with running(make_config(checkpoint), in_process=in_process) as engine:
        assert isinstance(engine, VllmStageEngine)
        assert engine.max_model_len == 256
        assert not engine.is_dead
        await check_greedy_tokens(engine, reference)
        await check_prompt_kinds(engine, checkpoint, reference)
        await check_refusals(engine)
        await check_abort(engine)
        await check_sampling(engine)
        await engine.shutdown()  # a second call, when the block ends, does nothing
    assert engine.is_dead
    with pytest.raises(EngineDeadStageError):
        await collect(engine, text_request("late", UserPrompt(text="Hello")))


async def check_greedy_tokens(engine: VllmStageEngine, reference: dict[str, list[int]]) -> None:
    """Concurrent requests share batches and return transformers' tokens, step by step."""
    requests = [text_request(f"greedy-{index}", UserPrompt(text=prompt)) for index, prompt in enumerate(PROMPTS)]
    results = await asyncio.gather(*(collect(engine, request) for request in requests))
    for prompt, steps in zip(PROMPTS, results, strict=True):
        assert token_ids(steps) == reference[prompt]
        assert steps[0].prompt_token_ids
        assert all(step.prompt_token_ids is None for step in steps[1:])
        assert [step.finish_reason for step in steps[:-1]] == [None] * (len(steps) - 1)
        assert steps[-1].finish_reason is FinishReason.LENGTH
        assert steps[0].scheduled_ns
    assert engine.unfinished_requests == 0
    assert await until_empty(engine) == 0


async def check_prompt_kinds(engine: VllmStageEngine, checkpoint: Path, reference: dict[str, list[int]]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    by_text = await collect(engine, text_request("text", UserPrompt(text=PROMPTS[0])))
    ids = tokenizer(PROMPTS[0])["input_ids"]
    by_ids = await collect(engine, text_request("ids", UserPrompt(token_ids=ids)))
    assert token_ids(by_ids) == token_ids(by_text) == reference[PROMPTS[0]]
    text = "".join(step.text for step in by_text)
    assert text == tokenizer.decode(reference[PROMPTS[0]], skip_special_tokens=True)
    chat = UserPrompt(messages=[ChatMessage("user", [TextPart("Hello")])])
    steps = await collect(engine, text_request("chat", chat))
    expected = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], add_generation_prompt=True, return_dict=False
    )
    assert steps[0].prompt_token_ids == expected


async def check_refusals(engine: VllmStageEngine) -> None:
    cases: list[tuple[str, StageRequest, type[Exception], str]] = [
        ("too long", text_request("r1", UserPrompt(token_ids=[5] * 256)), PromptTooLongError, "255"),
        ("out of vocabulary", text_request("r2", UserPrompt(token_ids=[9999])), InvalidRequestError, "vocabulary"),
        (
            "diffusion field",
            text_request("r3", UserPrompt(text="a"), SamplingDefaults(guidance_scale=2)),
            InvalidRequestError,
            "guidance_scale",
        ),
        (
            "stop token outside",
            text_request("r4", UserPrompt(text="a"), SamplingDefaults(stop_token_ids=[99999])),
            InvalidRequestError,
            "stop_token_ids",
        ),
    ]
    for name, request, error, message in cases:
        with pytest.raises(error, match=message):
            await collect(engine, request)
        assert engine.unfinished_requests == 0, name
    assert await until_empty(engine) == 0
    assert not engine.is_dead


async def abort_at_first_step(engine: VllmStageEngine, request: StageRequest) -> None:
    async for _ in engine.generate(request):
        await engine.abort(request.request_id)


async def check_explicit_abort(engine: VllmStageEngine, sampling: SamplingDefaults) -> None:
    """An aborted request ends with an error, unless the engine finished it before the abort arrived."""
    for attempt in range(10):
        try:
            await abort_at_first_step(engine, text_request(f"told-{attempt}", UserPrompt(text="Hello"), sampling))
        except ModelExecutionError:
            return
    pytest.fail("ten requests were aborted at their first step, and all ran to their end")


async def check_abort(engine: VllmStageEngine) -> None:
    long = SamplingDefaults(temperature=0.0, max_tokens=240, ignore_eos=True)
    for index, leave in enumerate(["close", "cancel", "abort"]):
        request = text_request(f"abort-{index}", UserPrompt(text="Hello"), long)
        if leave == "close":
            async with aclosing(engine.generate(request)) as steps:
                async for _ in steps:
                    assert engine.unfinished_requests == 0, "the caller has a step, so nobody waits for the engine"
                    break
        elif leave == "cancel":
            task = asyncio.create_task(collect(engine, request))
            await until(lambda: engine.unfinished_requests == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await check_explicit_abort(engine, long)
        assert engine.unfinished_requests == 0, leave
        assert await until_empty(engine) == 0, leave
    await engine.abort("unknown")


async def check_sampling(engine: VllmStageEngine) -> None:
    async def run(name: str, sampling: SamplingDefaults) -> list[StageStep]:
        return await collect(engine, text_request(name, UserPrompt(text="Hello"), sampling))

    seeded = SamplingDefaults(temperature=1.0, seed=7, max_tokens=12, ignore_eos=True)
    first, second = await run("seed-1", seeded), await run("seed-2", seeded)
    assert token_ids(first) == token_ids(second)
    unbounded = await run("unbounded", SamplingDefaults(temperature=0.0, max_tokens=100_000, ignore_eos=True))
    assert len(unbounded[0].prompt_token_ids or ()) + len(token_ids(unbounded)) == engine.max_model_len
    greedy = token_ids(await run("greedy", GREEDY))
    stopped = await run("stop", GREEDY.model_copy(update={"stop_token_ids": [greedy[4]]}))
    assert token_ids(stopped) == greedy[: greedy.index(greedy[4]) + 1]
    assert stopped[-1].finish_reason is FinishReason.STOP
