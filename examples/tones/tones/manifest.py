"""The family's manifest. It imports neither torch nor vLLM."""

from __future__ import annotations

from omni_proto.pipeline.components import ComponentFacts, EngineKind
from omni_proto.stage_config import Modality
from omni_stage.models.manifest import ComponentEntry, FamilyManifest, TinyCheckpoint, describe

SAMPLE_RATE_HZ = 24_000
ARCHITECTURE = "ToneModel"
"""The name of the architecture in a checkpoint's config.json."""

PLAYER = describe(
    ComponentFacts(
        id="tones/player",
        kind=EngineKind.DECODER,
        outputs=(Modality.AUDIO,),
        sample_rate_hz=SAMPLE_RATE_HZ,
    )
)

FAMILY = FamilyManifest(
    name="tones",
    components=(ComponentEntry(facts=PLAYER, factory="tones.component:build_component"),),
    model_classes={ARCHITECTURE: "tones.model:ToneModel"},
    tiny_checkpoint=TinyCheckpoint(writer="tones.tiny:write_tiny_checkpoint", shapes=("small",)),
)
