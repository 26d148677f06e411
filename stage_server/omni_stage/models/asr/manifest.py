"""The manifest of speech recognition: Whisper in transformers' format."""

from __future__ import annotations

from typing import Final

from omni_proto.pipeline.components import ComponentFacts, EngineKind, Refusal
from omni_proto.stage_config import Modality, SamplingDefaults
from omni_proto.tensors import TEXT
from omni_stage.models.manifest import ComponentEntry, FamilyManifest, TinyCheckpoint, describe

_PACKAGE: Final = "omni_stage.models.asr"

ARCHITECTURE: Final = "OmniWhisper"

WHISPER: Final = describe(
    ComponentFacts(
        id="asr/whisper",
        kind=EngineKind.AUTOREGRESSIVE,
        outputs=(Modality.TRANSCRIPT, Modality.TEXT),
        publishes=TEXT,
        media=("audio",),
        writes_text=True,
        times_words=True,
        default_sampling=SamplingDefaults(temperature=0.0),
        # The encoder reads 30 seconds of audio in one step, which takes a large model some time on a CPU.
        step_timeout_s=60.0,
        refused_sampling=(
            Refusal(field="stop", why="the words end with the audio, which is heard in parts", allows_empty=True),
        ),
    )
)

FAMILY: Final = FamilyManifest(
    name="asr",
    components=(ComponentEntry(facts=WHISPER, factory=f"{_PACKAGE}.component:build_component"),),
    model_classes={ARCHITECTURE: f"{_PACKAGE}.model:OmniWhisper"},
    tiny_checkpoint=TinyCheckpoint(writer=f"{_PACKAGE}.tiny:write_tiny_checkpoint", shapes=("small",)),
)
