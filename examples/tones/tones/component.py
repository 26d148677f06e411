"""Component tones/player: what runs in the stage server's process. Text in, one tone a character out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_proto.tensors import TensorSchema
from omni_stage.errors import InvalidRequestError
from omni_stage.models.component import EngineStep, StageInput, StageRequest, StageStep, UserPrompt
from omni_stage.payloads import AdditionalInformationPayload
from tones.manifest import PLAYER

MAX_CHARACTERS = 256


class Player:
    """The player of one checkpoint."""

    facts = PLAYER
    input_schema: TensorSchema | None = None
    output_schema: TensorSchema | None = None
    default_sampling = PLAYER.default_sampling
    voices: Sequence[str] = ()

    def __init__(self, path: str) -> None:
        self._path = path

    def engine_kwargs(self) -> dict[str, Any]:
        """Returns the engine's arguments. For vLLM's scheduler, a request has as many tokens as characters."""
        return {
            "model": self._path,
            "dtype": "float32",
            "skip_tokenizer_init": True,
            "runner": "pooling",
            "max_model_len": MAX_CHARACTERS,
            "max_num_batched_tokens": MAX_CHARACTERS,
            "enforce_eager": True,
        }

    def prepare(self, request: StageRequest) -> StageInput:
        """Returns the characters' codes, for ToneModel.generate. Raises InvalidRequestError."""
        if not isinstance(request.source, UserPrompt) or not request.source.text:
            raise InvalidRequestError("start.text: component tones/player plays a text; send one", field="start.text")
        codes = torch.tensor(list(request.source.text.encode()))
        if len(codes) > MAX_CHARACTERS:
            raise InvalidRequestError(
                f"start.text: at most {MAX_CHARACTERS} bytes can be played", field="start.text", limit=MAX_CHARACTERS
            )
        return StageInput(
            prompt={"prompt_token_ids": [0] * len(codes)},
            additional_information=AdditionalInformationPayload.from_mapping({"codes": codes}),
        )

    def emitter(self, request: StageRequest, prepared: StageInput) -> PlayerEmitter:
        """Returns an emitter that passes the audio on."""
        return PlayerEmitter()

    def warmup_request(self) -> StageRequest:
        """Returns a request for one tone."""
        return StageRequest(request_id="warmup", source=UserPrompt(text="a"), sampling=SamplingDefaults())


class PlayerEmitter:
    """Passes the audio on; holds nothing."""

    def emit(self, step: EngineStep) -> StageStep:
        """Returns one stage step for one engine step."""
        return StageStep.of_audio(step, step.tensors.get("output"))


def build_component(config: StageConfig) -> Player:
    """Returns the player of config.model.path."""
    return Player(config.model.path)
