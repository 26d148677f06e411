"""The component tones/player, which runs in the stage server's process. It plays each byte of a text as a tone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_proto.tensors import TensorSchema
from omni_stage.errors import InvalidRequestError
from omni_stage.models.component import EngineInput, EngineStep, StageRequest, StageStep, UserPrompt
from omni_stage.payloads import AdditionalInformationPayload
from tones.manifest import PLAYER

MAX_BYTES = 256
"""Maximum length of a text in UTF-8."""


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
        """Returns the engine's arguments. For vLLM's scheduler, a request has one token for each byte of text."""
        return {
            "model": self._path,
            "dtype": "float32",
            "skip_tokenizer_init": True,
            "runner": "pooling",
            "max_model_len": MAX_BYTES,
            "max_num_batched_tokens": MAX_BYTES,
            "enforce_eager": True,
        }

    def prepare(self, request: StageRequest) -> EngineInput:
        """Returns the text's bytes as the tensor `codes`, for ToneModel.generate.

        Raises InvalidRequestError if the request has no text, or a text that is too long.
        """
        if not isinstance(request.source, UserPrompt) or not request.source.text:
            raise InvalidRequestError("start.text: component tones/player plays a text; send one", field="start.text")
        codes = torch.tensor(list(request.source.text.encode()))
        if len(codes) > MAX_BYTES:
            message = f"start.text: at most {MAX_BYTES} bytes can be played"
            raise InvalidRequestError(message, field="start.text", limit=MAX_BYTES)
        return EngineInput(
            prompt={"prompt_token_ids": [0] * len(codes)},
            additional_information=AdditionalInformationPayload.from_mapping({"codes": codes}),
        )

    def emitter(self, request: StageRequest, prepared: EngineInput) -> PlayerEmitter:
        """Returns an emitter that sends the engine's audio unchanged."""
        return PlayerEmitter()

    def warmup_request(self) -> StageRequest:
        """Returns a request for one tone."""
        return StageRequest(request_id="warmup", source=UserPrompt(text="a"), sampling=SamplingDefaults())


class PlayerEmitter:
    """Sends the engine's audio unchanged; keeps no state."""

    def emit(self, step: EngineStep) -> StageStep:
        """Returns the stage step with the audio of an engine step."""
        return StageStep.of_audio(step, step.tensors.get("output"))


def build_component(config: StageConfig) -> Player:
    """Returns the player of config.model.path."""
    return Player(config.model.path)
