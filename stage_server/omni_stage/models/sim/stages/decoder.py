"""Component sim/decoder: reads frames of codes, and writes audio at the pace of a table."""

from __future__ import annotations

from collections.abc import Sequence

from omni_proto.stage_config import StageConfig
from omni_proto.tensors import TensorSchema
from omni_stage.models.component import StageRequest
from omni_stage.models.shared.voices import pick_voice
from omni_stage.models.sim.content import VoiceAudio
from omni_stage.models.sim.manifest import DECODER, VOICES
from omni_stage.models.sim.schemas import talker2decoder_schema
from omni_stage.models.sim.tables import Table


class Decoder:
    """The decoder of one table."""

    facts = DECODER
    output_schema: TensorSchema | None = None
    default_sampling = DECODER.default_sampling
    voices: Sequence[str] = VOICES

    def __init__(self, table: Table, config: StageConfig, max_model_len: int) -> None:
        self.input_schema: TensorSchema | None = talker2decoder_schema(table)
        self.samples_per_frame = table.samples_per_frame
        self.max_frames = max_model_len
        self._audio = {voice: VoiceAudio(voice) for voice in VOICES}

    def voice_audio(self, request: StageRequest) -> VoiceAudio:
        """Returns the audio of a request. Raises InvalidRequestError for an unknown voice."""
        return self._audio[pick_voice(request.voice, self.voices)]
