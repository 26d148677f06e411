"""The family's manifest. It imports neither torch nor vLLM."""

from __future__ import annotations

from omni_proto.pipeline.components import ComponentFacts, EngineKind
from omni_proto.stage_config import Modality
from omni_proto.tensors import TEXT
from omni_stage.models.manifest import ComponentEntry, FamilyManifest, describe

SAMPLE_RATE_HZ = 24_000
MAX_WORD_BYTES = 64

WRITER = describe(
    ComponentFacts(
        id="parrot/writer",
        kind=EngineKind.AUTOREGRESSIVE,
        outputs=(Modality.TEXT,),
        reads=TEXT,
        reads_prompt=True,
        publishes=TEXT,
        rows_per_position=MAX_WORD_BYTES,
        writes_text=True,
    )
)
VOICE = describe(
    ComponentFacts(
        id="parrot/voice",
        kind=EngineKind.DECODER,
        outputs=(Modality.AUDIO,),
        reads=TEXT,
        streams_input=True,
        sample_rate_hz=SAMPLE_RATE_HZ,
    )
)

FAMILY = FamilyManifest(
    name="parrot",
    components=(
        ComponentEntry(facts=WRITER, engine="parrot.engines:Writer"),
        ComponentEntry(facts=VOICE, engine="parrot.engines:Voice"),
    ),
)
