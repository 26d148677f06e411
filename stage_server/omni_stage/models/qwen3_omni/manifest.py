"""The manifest of Qwen3-Omni."""

from __future__ import annotations

from typing import Final

from omni_proto.pipeline.components import EngineKind
from omni_proto.stage_config import Modality
from omni_stage.models.manifest import ComponentEntry, FamilyManifest, TinyCheckpoint, describe

_PACKAGE: Final = "omni_stage.models.qwen3_omni"

THINKER_ARCHITECTURE: Final = "OmniQwen3Thinker"
TALKER_ARCHITECTURE: Final = "OmniQwen3Talker"
CODE2WAV_ARCHITECTURE: Final = "OmniQwen3Code2Wav"

THINKER_TO_TALKER: Final = "qwen3_omni/thinker2talker"
TALKER_TO_CODE2WAV: Final = "qwen3_omni/talker2code2wav"

CODE2WAV: Final = describe(
    id="qwen3_omni/code2wav",
    kind=EngineKind.DECODER,
    outputs=(Modality.AUDIO,),
    reads=TALKER_TO_CODE2WAV,
    streams_input=True,
    # 12.5 frames a second, 1,920 samples each. In no configuration file.
    sample_rate_hz=24_000,
    step_timeout_s=60.0,
    queue_timeout_s=120.0,
)

FAMILY: Final = FamilyManifest(
    name="qwen3_omni",
    components=(
        ComponentEntry(
            facts=CODE2WAV, factory=f"{_PACKAGE}.code2wav.component:build_component", weight_prefixes=("code2wav.",)
        ),
    ),
    model_classes={
        CODE2WAV_ARCHITECTURE: f"{_PACKAGE}.code2wav.model:Code2WavModel",
    },
    tiny_checkpoint=TinyCheckpoint(writer=f"{_PACKAGE}.tiny:write_tiny_checkpoint", shapes=("small", "wide")),
)
