"""The manifest of voices: VITS, in Piper's and in transformers' format."""

from __future__ import annotations

from typing import Final

from omni_proto.pipeline.components import ComponentFacts, EngineKind
from omni_proto.stage_config import Modality
from omni_proto.tensors import TEXT
from omni_stage.models.manifest import ComponentEntry, FamilyManifest, TinyCheckpoint, describe

_PACKAGE: Final = "omni_stage.models.voice"

VITS_ARCHITECTURE: Final = "OmniVitsVoice"

VITS: Final = describe(
    ComponentFacts(
        id="voice/vits",
        kind=EngineKind.DECODER,
        outputs=(Modality.AUDIO,),
        reads=TEXT,
        streams_input=True,
        # The rate of most published voices. The checkpoint's own rate is used at run time.
        sample_rate_hz=22_050,
        step_timeout_s=120.0,
        queue_timeout_s=120.0,
        # The model is a few MB: a second GPU would only repeat the work of the first.
        max_gpus=1,
    )
)

FAMILY: Final = FamilyManifest(
    name="voice",
    components=(ComponentEntry(facts=VITS, factory=f"{_PACKAGE}.component:build_component", weight_files=("*.onnx",)),),
    model_classes={VITS_ARCHITECTURE: f"{_PACKAGE}.model:VitsVoiceModel"},
    tiny_checkpoint=TinyCheckpoint(writer=f"{_PACKAGE}.tiny:write_tiny_checkpoint", shapes=("small", "speakers")),
)
