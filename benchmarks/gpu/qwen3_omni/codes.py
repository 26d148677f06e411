"""Compares our text, media rows and codes of all codebooks with those of transformers' model (float32, on the CPU)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.checks import Context, Finding, at_most, equal
from benchmarks.gpu.stages.engines import engine_arguments, environment, poisoned_padding, tiny_checkpoint

FAMILY = "qwen3_omni"
ROWS_CPU, ROWS_GPU = 4e-3, 2e-2
AUDIO_CPU, AUDIO_GPU = 1e-5, 1e-4
SHARE = 0.12
"""Share of the GPU for each of the three tiny stages. The rest stays free for other processes."""
_CPU_ONLY = "needs a GPU: vLLM's CPU build has no CUDA graphs"


def _prompts(context: Context) -> dict[str, Any]:
    from support.media.samples import make_audio, make_image
    from support.models.reference import ReferencePrompt

    text = {"text": ReferencePrompt("Say what the weather is like.")}
    media = {
        "sound": ReferencePrompt("What do you hear?", audios=[make_audio(0)]),
        "image": ReferencePrompt("What do you see?", images=[make_image(0)]),
    }
    return text | media if context.on_gpu else {"sound": media["sound"]}


@cache
def _reference(checkpoint: Path) -> Any:
    from support.models.reference_qwen3 import load_qwen3_reference

    return load_qwen3_reference(checkpoint)


def codes(context: Context) -> Iterator[Finding]:
    """Compares each prompt's answers over Full and over Stream edges. On a GPU, all prompts also run concurrently.

    On a GPU, everything is repeated with CUDA graphs, and then with CUDA graphs and NaN in the padding.
    """
    arguments = {"gpu_memory_utilization": SHARE} if context.on_gpu else {}
    # Triton multiplies float32 in TF32 by default. With TF32, a router's choice of experts may differ from float32's.
    with environment(TRITON_F32_DEFAULT="ieee"):
        with engine_arguments(**arguments):
            yield from asyncio.run(_compare(context, "eager"))
        for name in ("graphs", "poisoned_padding"):
            if not context.on_gpu:
                yield Finding("", name=name, skipped=_CPU_ONLY)
                continue
            with engine_arguments(enforce_eager=False, **arguments), poisoned_padding(name != "graphs"):
                yield from asyncio.run(_compare(context, name))


async def _compare(context: Context, label: str) -> list[Finding]:
    from support.engines.omni_stages import run_omni_stages
    from support.models.qwen3_chain import run_chain, run_streamed
    from support.models.reference_qwen3 import Qwen3Settings

    settings = Qwen3Settings(frames=40 if context.on_gpu else 8)
    checkpoint = tiny_checkpoint(context.out.parent, FAMILY)
    model = _reference(checkpoint)
    prompts = _prompts(context)
    expected = {name: model.run(prompt, settings) for name, prompt in prompts.items()}
    findings: list[Finding] = []
    async with run_omni_stages(checkpoint, family=FAMILY, dtype="float32") as stages:
        for name, prompt in prompts.items():
            for way, run in (("full", run_chain), ("stream", run_streamed)):
                given = await run(stages, prompt, settings)
                findings += _judge(context, f"{label}.{name}.{way}", given, expected[name])
                if way == "full" and "media" in given["thinker"].tensors:
                    rows = media_rows(model, prompt)
                    ours = given["thinker"].tensors["media"].float()
                    difference = float((ours - rows).abs().max() / rows.abs().max())
                    limit = ROWS_GPU if context.on_gpu else ROWS_CPU
                    findings.append(at_most(difference, limit, name=f"{label}.{name}.rows"))
        names = [*prompts, *prompts] if context.on_gpu else []
        runs = (run_streamed if index % 2 else run_chain for index in range(len(names)))
        together = await asyncio.gather(
            *(run(stages, prompts[name], settings) for run, name in zip(runs, names, strict=True))
        )
        same = [
            given["talker"].tensors["codes"].tolist() == expected[name].codes.tolist()
            for given, name in zip(together, names, strict=True)
        ]
        if names:
            findings.append(equal(sum(same), len(names), name=f"{label}.together"))
    return findings


def _judge(context: Context, name: str, ours: dict[str, Any], theirs: Any) -> list[Finding]:
    """Returns the findings for text, codes and audio of one answer. Audio is compared only if the codes are equal."""
    tokens = ours["thinker"].token_ids
    codes = ours["talker"].tensors["codes"]
    audio = ours["code2wav"].audio
    found = [
        equal(tokens == theirs.thinker_token_ids, True, name=f"{name}.text"),
        Finding(_first_frame(codes, theirs.codes), "equal", ok=codes.tolist() == theirs.codes.tolist(), name=name),
    ]
    if audio.shape == theirs.waveform.shape and codes.tolist() == theirs.codes.tolist():
        limit = AUDIO_GPU if context.on_gpu else AUDIO_CPU
        found.append(at_most(float((audio - theirs.waveform).abs().max()), limit, name=f"{name}.sound"))
    return found


def _first_frame(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    """Returns a description of where two tables of frames [frames, groups] first differ."""
    for index in range(min(len(ours), len(theirs))):
        differing = (ours[index] != theirs[index]).nonzero().flatten().tolist()
        if differing:
            return f"frame {index} of {len(theirs)}, codebook {differing[0]} of {theirs.shape[1]}"
    return "equal" if len(ours) == len(theirs) else f"{len(ours)} of {len(theirs)} frames"


@torch.no_grad()
def media_rows(model: Any, prompt: Any) -> torch.Tensor:
    """Returns transformers' hidden states [n, H] of accept_hidden_layer at the media tokens of the prompt."""
    inputs = model.encode(prompt)
    thinker = model.model.thinker
    config = model.model.config
    states = thinker(**inputs, output_hidden_states=True, use_cache=False).hidden_states
    rows: torch.Tensor = states[config.talker_config.accept_hidden_layer][0]
    ids = inputs["input_ids"][0]
    placeholders = [getattr(config.thinker_config, f"{kind}_token_id") for kind in ("audio", "image", "video")]
    return rows[torch.isin(ids, torch.tensor(placeholders))]


def syncs(context: Context) -> Finding:
    """Runs all stages under vLLM's own check that no step waits for the GPU. The talker's steps include the code
    predictor.

    The prompt has no media, because vLLM 0.32's thinker class waits for the GPU when it places media.
    """
    with (
        environment(VLLM_GPU_SYNC_CHECK="error", TRITON_F32_DEFAULT="ieee"),
        engine_arguments(gpu_memory_utilization=SHARE),
    ):
        asyncio.run(_talk(context))
    return Finding("none", "none")


async def _talk(context: Context) -> None:
    from support.engines.omni_stages import run_omni_stages
    from support.models.qwen3_chain import run_streamed
    from support.models.reference_qwen3 import Qwen3Settings

    checkpoint = tiny_checkpoint(context.out.parent, FAMILY)
    async with run_omni_stages(checkpoint, family=FAMILY, dtype="float32") as stages:
        # Together, so that steps mix prefill and decoding.
        prompt = _prompts(context)["text"]
        await asyncio.gather(*(run_streamed(stages, prompt, Qwen3Settings()) for _ in range(4)))
