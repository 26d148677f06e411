"""Three stage servers in separate processes, over gRPC, give the same output as transformers' Qwen3-Omni."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_proto.client import AsyncOmniClient, system, user, video_part
from omni_stage.decoding.audio import AudioRules
from omni_stage.decoding.video import decode_audio_track, decode_video
from support.media.samples import make_audio, make_image
from support.media.videos import encode_video
from support.models.grpc_parity import EXACT, check_each_alone_and_all_at_once, check_text_and_audio, media_parts
from support.models.reference import AUDIO_RATE_HZ, ReferencePrompt
from support.models.reference_qwen3 import Qwen3Settings, load_qwen3_reference
from support.processes.pipelines import SAMPLES, RunningPipeline, run_pipeline

pytestmark = pytest.mark.pipeline

FILE = encode_video(width=14 * 32, height=10 * 32)
"""A video of two seconds. Its size is a whole number of tokens (14 by 10), so the model does not resize it."""


@dataclass(frozen=True)
class Case:
    """A prompt for transformers. `video` is the file that a client sends in place of the decoded frames and audio."""

    prompt: ReferencePrompt
    settings: Qwen3Settings
    video: bytes = b""


def seen(*, heard: bool) -> dict[str, Any]:
    """Returns FILE's frames, and its audio if `heard`, decoded by the stage's own decoder."""
    frames = np.empty((4, 10 * 32, 14 * 32, 3), np.uint8)
    assert decode_video(FILE, "video/mp4", seconds=2.0, max_frames=20, out=frames) == (4, 0.0)
    waveform = np.empty(3 * AUDIO_RATE_HZ, np.float32)
    rules = AudioRules(to_hz=AUDIO_RATE_HZ, stated_s=2.0, max_rate_hz=192_000, max_channels=8)
    length, damage = decode_audio_track(FILE, "video/mp4", rules, waveform)
    assert not damage
    return {"videos": [frames], "heard": [waveform[:length]] if heard else []}


def make_cases() -> dict[str, Case]:
    """Returns prompts of every kind, some with another voice and length."""
    usual, other = Qwen3Settings(), Qwen3Settings(thinker_tokens=20, frames=24, voice="Aiden")
    return {
        "text": Case(ReferencePrompt("Tell me what the weather is like."), usual),
        "system": Case(ReferencePrompt("Tell me what the weather is like.", system="Be brief."), other),
        "sound": Case(ReferencePrompt("What do you hear?", audios=[make_audio(0)]), usual),
        "image": Case(ReferencePrompt("What do you see?", images=[make_image(0)]), other),
        "image and sound": Case(
            ReferencePrompt("Read it.", images=[make_image(1, 140, 56)], audios=[make_audio(1, 0.7)]), usual
        ),
        "video": Case(ReferencePrompt("What happens?", **seen(heard=False)), usual, FILE),
        "heard video": Case(ReferencePrompt("What happens?", **seen(heard=True)), other, FILE),
        "heard video beside an image": Case(
            ReferencePrompt("Compare.", images=[make_image(2)], system="Be brief.", **seen(heard=True)), usual, FILE
        ),
    }


async def generate(client: AsyncOmniClient, case: Case) -> Any:
    prompt, settings = case.prompt, case.settings
    parts = media_parts(prompt) + ([video_part(case.video)] if case.video else [])
    chat = [user(*parts, prompt.text)]
    return await client.run(
        chat=chat if prompt.system is None else [system(prompt.system), *chat],
        use_audio_in_video=bool(prompt.heard),
        sampling={
            "thinker": {"temperature": 0.0, "max_tokens": settings.thinker_tokens},
            "talker": {"temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": settings.frames},
        },
        voice=settings.voice,
        **EXACT,
    )


async def compare(endpoint: str, checkpoint: Path) -> None:
    reference, cases = load_qwen3_reference(checkpoint), make_cases()
    assert len(cases) == 8
    expected = {name: reference.run(case.prompt, case.settings) for name, case in cases.items()}

    def check(name: str, result: Any) -> None:
        # Equal audio shows that all codebooks are equal: any different code would give different audio.
        check_text_and_audio(result, expected[name])
        codes = expected[name].codes
        assert result.token_ids["talker"][: codes.shape[0]] == codes[:, 0].tolist()

    await check_each_alone_and_all_at_once(endpoint, cases, generate, check)


async def test_seed_0_small(qwen3_pipeline: RunningPipeline, make_tiny_checkpoint: Callable[..., Path]) -> None:
    await compare(qwen3_pipeline.endpoint, make_tiny_checkpoint(0, "small", "qwen3_omni"))


@pytest.mark.full  # starts a pipeline for each case
@pytest.mark.parametrize(("seed", "shape"), [(1, "small"), (0, "wide"), (1, "wide")])
async def test_other_seeds_and_shapes(
    make_tiny_checkpoint: Callable[..., Path], tmp_path: Path, seed: int, shape: str
) -> None:
    checkpoint = make_tiny_checkpoint(seed, shape, "qwen3_omni")
    with run_pipeline(SAMPLES / "tiny-qwen3-omni.yaml", checkpoint, tmp_path) as running:
        await compare(running.endpoint, checkpoint)
