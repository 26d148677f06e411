"""OmniLLM runs the three stages of a pipeline file offline: equal to transformers, one by one and as a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_proto.stage_config import Modality
from omni_stage import OmniLLM
from omni_stage.engine.offline.omni_llm import OmniResult
from omni_stage.errors import InvalidRequestError
from support.engines.omni_stages import AUDIO_TOLERANCE
from support.media.samples import make_audio, make_image
from support.models.reference import PLAIN_SYSTEM_PROMPT, Reference, ReferencePrompt, ReferenceSettings, load_reference
from support.processes.pipelines import SAMPLES

pytestmark = pytest.mark.engine

SETTINGS = ReferenceSettings(seed=11)
PROMPTS = [
    ReferencePrompt("Count to three."),
    ReferencePrompt("And both?", images=[make_image(3, 140, 56)], audios=[make_audio(3, 0.7)]),
]
SAMPLING: dict[str, dict[str, Any]] = {
    "thinker": {"temperature": 0.0, "max_tokens": SETTINGS.thinker_tokens},
    "talker": {"temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": SETTINGS.talker_tokens},
    "token2wav": {"num_inference_steps": SETTINGS.steps, "guidance_scale": SETTINGS.guidance},
}


def check(result: OmniResult, expected: Reference) -> None:
    assert result.stages["thinker"].prompt_token_ids == expected.prompt_token_ids
    assert result.stages["thinker"].token_ids == expected.thinker_token_ids
    assert result.text == expected.text
    assert result.stages["talker"].token_ids == expected.codec_token_ids
    assert result.sample_rate_hz == 24_000
    assert result.audio is not None
    torch.testing.assert_close(result.audio, expected.waveform, atol=AUDIO_TOLERANCE, rtol=0)


def test_a_pipeline_file_alone_and_as_a_batch(make_tiny_checkpoint: Callable[..., Path]) -> None:
    checkpoint = make_tiny_checkpoint(1, "gqa")
    expected = [load_reference(checkpoint).run(prompt, SETTINGS) for prompt in PROMPTS]
    prompts = [prompt.to_user_prompt() for prompt in PROMPTS]
    with OmniLLM(SAMPLES / "tiny-omni.yaml", model_dir=checkpoint) as llm:
        for prompt, reference in zip(prompts, expected, strict=True):
            [result] = llm.generate([prompt], SAMPLING, seed=SETTINGS.seed, voice=SETTINGS.voice)
            check(result, reference)
        together = llm.generate(prompts, SAMPLING, seed=SETTINGS.seed, voice=SETTINGS.voice)
        [written] = llm.generate([prompts[0]], SAMPLING, modalities=[Modality.TEXT])
        with pytest.raises(InvalidRequestError, match="voice"):
            llm.generate(prompts, SAMPLING, voice="nobody")
    for result, reference in zip(together, expected, strict=True):
        check(result, reference)
    # Text that is not spoken keeps the chat template's default system message.
    plain = dataclasses.replace(PROMPTS[0], system=PLAIN_SYSTEM_PROMPT)
    assert written.text == load_reference(checkpoint).run(plain, SETTINGS).text
    assert list(written.stages) == ["thinker"], "nobody asked for sound"
    assert written.audio is None
