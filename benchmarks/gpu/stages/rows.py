"""Compares the thinker's rows, and the codes that the talker makes from rows, with transformers (float32, on the CPU).

The thinker gets a prompt that does not fit into a step (chunked), more prompts than fit into its KV cache (preempted),
and long and short prompts together (mixed). On a GPU it gets them in each graph mode, with synchronous and with
asynchronous scheduling.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.checks import Context, Finding, at_most, equal
from benchmarks.gpu.memory.sizes import kv_shape
from benchmarks.gpu.stages.engines import engine_arguments, environment, poisoned_padding, tiny_checkpoint
from omni_proto.gpu_memory import MIB

GRAPH_MODES = ("NONE", "PIECEWISE", "FULL_AND_PIECEWISE")
SENTENCE = "The road goes through the hills, past the mill and the old stone bridge, to the town. "
CPU_LIMIT, GPU_LIMIT = 1e-4, 2e-2
"""Largest difference that rounding explains, relative to the rows' largest value: in float32 (CPU) and TF32 (GPU)."""
_CPU_ONLY = "needs a GPU: vLLM's CPU build has no CUDA graphs and no asynchronous scheduling"


def _prompts() -> dict[str, list[Any]]:
    from support.models.reference import ReferencePrompt

    return {
        "chunked": [ReferencePrompt(3 * SENTENCE)],
        "preempted": [ReferencePrompt(2 * SENTENCE + f"Number {index}.") for index in range(14)],
        "mixed": [ReferencePrompt(SENTENCE), ReferencePrompt("Why?"), ReferencePrompt(2 * SENTENCE)],
    }


def _arguments(context: Context, mode: str, asynchronous: bool) -> dict[str, Any]:
    if not context.on_gpu:
        return {}
    return {
        "compilation_config": {"cudagraph_mode": mode},
        "enforce_eager": mode == "NONE",
        "async_scheduling": asynchronous,
        "gpu_memory_utilization": 0.3,
    }


def rows_out(context: Context) -> Iterator[Finding]:
    """Compares the thinker's rows for every combination of graph mode, scheduling and prompts.

    Graph modes: none, PIECEWISE, FULL_AND_PIECEWISE. Scheduling: sync, async. Prompts: chunked, preempted, mixed.
    """
    for mode in GRAPH_MODES:
        for asynchronous in (False, True):
            name = f"{mode.lower()}_{'async' if asynchronous else 'sync'}"
            if not context.on_gpu and (mode != "NONE" or asynchronous):
                yield Finding("", name=name, skipped=_CPU_ONLY)
                continue
            # This process may have initialized CUDA, which does not survive a fork.
            spawned = environment(VLLM_WORKER_MULTIPROC_METHOD="spawn")
            with spawned, engine_arguments(**_arguments(context, mode, asynchronous)):
                yield from asyncio.run(_compare_rows(context, name))


async def _compare_rows(context: Context, name: str) -> list[Finding]:
    from support.engines.omni_stages import run_omni_stages
    from support.models.reference import ReferenceSettings, load_reference

    checkpoint = tiny_checkpoint(context.out.parent)
    settings = ReferenceSettings(thinker_tokens=24)
    reference = load_reference(checkpoint)
    sizes = {"max_num_batched_tokens": 32, "kv_cache_memory_mib": 1, "block_size": 32, "max_model_len": 256}
    sizes["max_num_seqs"] = 16
    text = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["thinker_config"]["text_config"]
    capacity = MIB // kv_shape(text, element_bytes=4).token_bytes
    limit = GPU_LIMIT if context.on_gpu else CPU_LIMIT
    findings = []
    # On a GPU each engine has its own process, so that its memory is free for the next engine.
    alone = {"in_process": not context.on_gpu}
    async with run_omni_stages(checkpoint, "thinker", max_media=0, dtype="float32", **alone, **sizes) as stages:
        for case, prompts in _prompts().items():
            expected = [reference.run(prompt, settings) for prompt in prompts]
            given = await asyncio.gather(
                *(
                    stages.ask("thinker", prompt.to_user_prompt(), temperature=0.0, max_tokens=settings.thinker_tokens)
                    for prompt in prompts
                )
            )
            counts = [one.tensors["x"].shape[0] for one in given]
            findings.append(equal(counts, [one.rows.shape[0] for one in expected], name=f"{name}.{case}.rows"))
            if case == "preempted":
                words = f"{sum(counts)} tokens at once, {capacity} fit"
                findings.append(Finding(words, "more than fit", ok=sum(counts) > capacity, name=f"{name}.{case}.cache"))
            if counts == [one.rows.shape[0] for one in expected]:
                pairs = zip(given, expected, strict=True)
                largest = max(_difference(mine.tensors["x"], theirs.rows) for mine, theirs in pairs)
                findings.append(at_most(largest, limit, name=f"{name}.{case}"))
    return findings


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.float() - theirs).abs().max() / theirs.abs().max())


def first_difference(ours: list[int], theirs: list[int]) -> str:
    """Returns a description of where two lists first differ."""
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return f"differs at {index} of {len(theirs)}"
    return "equal" if len(ours) == len(theirs) else f"{len(ours)} of {len(theirs)}"


def rows_in(context: Context) -> Iterator[Finding]:
    """Compares the talker's greedy codes with those of transformers, and codes over a Stream edge with codes over a
    Full edge.

    On a GPU it then runs with CUDA graphs, without and with NaN in the padding, and compares these codes with those of
    eager mode.
    """
    arguments = {"gpu_memory_utilization": 0.4} if context.on_gpu else {}
    with engine_arguments(**arguments):
        eager = asyncio.run(_talk(context))
    yield Finding(first_difference(*eager["codes"]), "equal", ok=eager["codes"][0] == eager["codes"][1], name="codes")
    yield Finding(
        first_difference(*eager["stream"]), "equal", ok=eager["stream"][0] == eager["stream"][1], name="stream"
    )
    if not context.on_gpu:
        yield Finding("", name="graphs", skipped=_CPU_ONLY)
        yield Finding("", name="poisoned_padding", skipped=_CPU_ONLY)
        return
    for name, poisoned in (("graphs", False), ("poisoned_padding", True)):
        with engine_arguments(enforce_eager=False, **arguments), poisoned_padding(poisoned):
            graphed = asyncio.run(_talk(context))
        ours, theirs = graphed["codes"][0], eager["codes"][0]
        yield Finding(first_difference(ours, theirs), "equal", ok=ours == theirs, name=name)


async def _talk(context: Context) -> dict[str, tuple[list[int], list[int]]]:
    """Returns two pairs of codes. "codes": ours over a Full edge, and transformers'. "stream": ours over a Stream edge,
    and ours over a Full edge."""
    from support.engines.omni_stages import run_omni_stages
    from support.engines.streams import run_live
    from support.models.reference import ReferencePrompt, ReferenceSettings, load_reference

    checkpoint = tiny_checkpoint(context.out.parent)
    prompt, settings = ReferencePrompt("Tell me what the weather is like."), ReferenceSettings()
    expected = load_reference(checkpoint).run(prompt, settings)
    greedy = {"temperature": 0.0, "repetition_penalty": 1.0}
    writing, talking = ({**greedy, "max_tokens": count} for count in (settings.thinker_tokens, settings.talker_tokens))
    async with run_omni_stages(checkpoint, "thinker", "talker", max_media=0, dtype="float32") as stages:
        thought = await stages.ask("thinker", prompt.to_user_prompt(), **writing)
        full = await stages.ask("talker", thought.tensors, settings.voice, **talking)
        _, live, _ = await run_live(
            stages.engines["thinker"], stages.engines["talker"], prompt.to_user_prompt(), writing, talking
        )
    return {"codes": (full.token_ids, expected.codec_token_ids), "stream": (live.token_ids, full.token_ids)}


def syncs(context: Context) -> Finding:
    """Runs thinker and talker under vLLM's check that no step waits for the GPU. If one does, the log has its stack."""
    with environment(VLLM_GPU_SYNC_CHECK="error"), engine_arguments(gpu_memory_utilization=0.4):
        asyncio.run(_talk(context))
    return Finding("none", "none")


def tensor_parallel(context: Context) -> Finding:
    """Compares the rows of a thinker on two GPUs with those on one GPU."""
    rows = [asyncio.run(_rows_of(context, gpus)) for gpus in (1, 2)]
    return at_most(_difference(rows[1], rows[0].float()), GPU_LIMIT)


async def _rows_of(context: Context, gpus: int) -> torch.Tensor:
    from omni_stage.engine.factory import build_stage_engine
    from support.engines.omni_stages import OmniStages, stage_config
    from support.models.reference import ReferencePrompt

    config = stage_config("thinker", tiny_checkpoint(context.out.parent), 0, dtype="float32")
    engine = build_stage_engine(config.model_copy(update={"tensor_parallel_size": gpus}), in_process=False)
    try:
        await engine.start()
        asked = OmniStages({"thinker": engine}).ask(
            "thinker", ReferencePrompt(SENTENCE).to_user_prompt(), temperature=0.0, max_tokens=16
        )
        return (await asked).tensors["x"]
    finally:
        await engine.shutdown()
