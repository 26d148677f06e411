"""Checks the published checkpoint (MODEL=...): tensors load, text equals that of transformers, a WAV is audible."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import wave as wav
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.checks import Context, Finding
from benchmarks.gpu.stages.engines import engine_arguments, load_sample
from benchmarks.gpu.stages.rows import first_difference

QUESTION = "Please say hello in one short sentence."
TOKENS, CODES = 32, 100


def answers(context: Context) -> Iterator[Finding]:
    """Runs our three stages one after another, then transformers, and compares the text.

    Only one model is loaded at a time, so that a GPU with 80 GB suffices. Loading fails if a tensor is missing or
    unknown.
    """
    ours = asyncio.run(_run(context))
    yield Finding("loaded", "no tensor missing or left over", name="tensors")
    samples = ours["audio"]
    path = context.out / "hello.wav"
    write_wav(path, samples)
    loudness = float(np.abs(samples).max(initial=0))
    yield Finding(f"{len(samples)} samples, peak {loudness:.3f}", "peak>0.01", ok=loudness > 0.01, name="audio")
    theirs = reference(context, ours["prompt"])
    same = ours["tokens"][: len(theirs)] == theirs[: len(ours["tokens"])]
    yield Finding(first_difference(ours["tokens"], theirs), "equal", ok=same, name="text", data={"text": ours["text"]})


async def _run(context: Context) -> dict[str, Any]:
    """Run our three stages, one engine at a time. Returns the prompt, tokens, text and audio."""
    from omni_proto.stage_config import SamplingDefaults
    from omni_stage.engine.offline.inputs import compile_offline, parse_prompt
    from omni_stage.engine.offline.stage_llm import StageLLM
    from omni_stage.models.component import EdgeInput

    pipeline, checkpoint = load_sample(context)
    result: dict[str, Any] = {}
    tensors: Mapping[str, torch.Tensor] = {}
    for config in compile_offline(pipeline, checkpoint):
        stage = StageLLM(config, in_process=False)
        try:
            with engine_arguments(gpu_memory_utilization=0.85):
                await stage.start()
            source = parse_prompt(QUESTION) if config.input is None else EdgeInput(dict(tensors))
            limit = {"thinker": TOKENS, "talker": CODES}.get(config.stage)
            sampling = SamplingDefaults(temperature=0.0, max_tokens=limit) if limit else SamplingDefaults()
            given = await stage.generate(source, sampling, seed=0, want_tensors=config.stage != "token2wav")
        finally:
            await stage.shutdown()
        tensors = given.tensors
        if config.stage == "thinker":
            result |= {"prompt": given.prompt_token_ids, "tokens": given.token_ids, "text": given.text}
        if given.audio is not None:
            result["audio"] = given.audio.cpu().numpy()
    return result


def reference(context: Context, prompt: list[int]) -> list[int]:
    """Returns transformers' greedy tokens for the same prompt, in bfloat16 on the GPU.

    It passes an attention mask, which transformers' model code expects.
    """
    from transformers import Qwen2_5OmniThinkerForConditionalGeneration as Thinker

    model = Thinker.from_pretrained(context.model, dtype=torch.bfloat16, device_map="cuda")
    ids = torch.tensor([prompt], device="cuda")
    with torch.inference_mode():
        written = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=151645,
        )
    tokens: list[int] = written[0, ids.shape[1] :].tolist()
    return tokens


def golden(context: Context) -> Iterator[Finding]:
    """Lets token2wav decode codes for which others published the 7B model's audio, and compares our audio with that."""
    if importlib.util.find_spec("benchmarks.gpu.released.golden") is None:
        yield Finding("", skipped="benchmarks/gpu/released/golden.py is not here")
        return
    known: Any = importlib.import_module("benchmarks.gpu.released.golden")
    audio = known.golden_audio()
    samples = asyncio.run(_speak(context, audio))
    write_wav(context.out / "golden.wav", samples)
    found = known.judge_audio(samples.tolist(), audio)
    yield Finding(
        f"{found.verdict.value}: {found.value}", found.limit, ok=found.verdict is not known.Verdict.FAIL, name="audio"
    )


async def _speak(context: Context, audio: Any) -> np.ndarray:
    from omni_stage.engine.offline.inputs import compile_offline
    from omni_stage.engine.offline.stage_llm import StageLLM
    from omni_stage.models.component import EdgeInput

    pipeline, checkpoint = load_sample(context)
    config = next(one for one in compile_offline(pipeline, checkpoint) if one.stage == "token2wav")
    stage = StageLLM(config, in_process=False)
    try:
        await stage.start()
        codes = {"codes": torch.tensor(audio.codes, dtype=torch.int64)}
        given = await stage.generate(EdgeInput(codes), seed=audio.seed, voice=audio.voice)
    finally:
        await stage.shutdown()
    if given.audio is None:
        raise RuntimeError("token2wav gave no audio")
    samples: np.ndarray = given.audio.cpu().numpy()
    return samples


def write_wav(path: Path, samples: np.ndarray) -> None:
    """Write samples in [-1, 1] as 16-bit PCM at 24 kHz."""
    with wav.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
