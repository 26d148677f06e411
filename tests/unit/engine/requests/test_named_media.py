"""vLLM finds processed media by the keys that decoded ones have, and hashes the contents of media without a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.multimodal.hasher import MultiModalHasher
from vllm.renderers import renderer_from_config
from vllm.v1.engine.input_processor import InputProcessor

from omni_proto.stage_config import SamplingDefaults
from omni_stage.engine.factory import build_stage_engine
from omni_stage.models.component import AudioPart, ChatMessage, ImagePart, StageRequest, UserPrompt
from support.engines.omni_stages import stage_config
from support.media.samples import make_audio, make_image


def test_media_with_a_key_are_not_hashed(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = build_stage_engine(stage_config("thinker", tiny_checkpoint, mm_processor_cache_mib=8))
    config = engine._create_vllm_config()
    renderer = renderer_from_config(config)
    inputs, hashed = InputProcessor(config, renderer), []
    hash_kwargs = MultiModalHasher.hash_kwargs

    def watched(*args: Any, **kwargs: Any) -> str:
        hashed.append(sorted({"audio", "image"} & kwargs.keys()))
        return hash_kwargs(*args, **kwargs)

    monkeypatch.setattr(MultiModalHasher, "hash_kwargs", watched)

    def process(audio_key: str, image_key: str) -> tuple[Any, list[tuple[str, bool]]]:
        parts = [AudioPart(make_audio(0), 16_000, key=audio_key), ImagePart(make_image(0), image_key)]
        asked = StageRequest("r", UserPrompt(messages=[ChatMessage("user", parts)]), SamplingDefaults())
        prompt = engine.component.prepare(asked).prompt
        done = inputs.process_inputs("r", prompt, SamplingParams(), supported_tasks=("generate",))
        return done.prompt_token_ids, [(each.identifier, each.data is None) for each in done.mm_features or ()]

    try:
        tokens, new = process("a", "a")
        assert new == [("audio-a", False), ("image-a", False)]
        assert process("a", "a") == (tokens, [("audio-a", True), ("image-a", True)])
        assert not hashed
        again, others = process("b", "")
        assert (again, hashed) == (tokens, [["image"]])
        assert [is_known for _, is_known in others] == [False, False]
    finally:
        renderer.shutdown()
