"""The manifest of the paced engines."""

from __future__ import annotations

from typing import Final

from omni_proto.pipeline.components import ComponentFacts, EngineKind, Refusal
from omni_proto.stage_config import Modality, SamplingDefaults
from omni_stage.models.manifest import ComponentEntry, FamilyManifest, describe

THINKER_TO_TALKER: Final = "sim/thinker2talker"
TALKER_TO_DECODER: Final = "sim/talker2decoder"
SAMPLE_RATE_HZ: Final = 24_000
VOICES: Final = ("Tone", "Bell")
_ENGINE: Final = "omni_stage.models.sim.engine:build_engine"

THINKER: Final = describe(
    ComponentFacts(
        id="sim/thinker",
        kind=EngineKind.AUTOREGRESSIVE,
        outputs=(Modality.TEXT,),
        publishes=THINKER_TO_TALKER,
        writes_text=True,
        refused_sampling=(
            Refusal(
                field="stop", why="is not supported by a paced engine", remedy="use stop_token_ids", allows_empty=True
            ),
        ),
    )
)
TALKER: Final = describe(
    ComponentFacts(
        id="sim/talker",
        kind=EngineKind.AUTOREGRESSIVE,
        reads=THINKER_TO_TALKER,
        publishes=TALKER_TO_DECODER,
        streams_input=True,
        voices=VOICES,
        default_sampling=SamplingDefaults(max_tokens=4096),
    )
)
DECODER: Final = describe(
    ComponentFacts(
        id="sim/decoder",
        kind=EngineKind.DECODER,
        outputs=(Modality.AUDIO,),
        reads=TALKER_TO_DECODER,
        streams_input=True,
        voices=VOICES,
        sample_rate_hz=SAMPLE_RATE_HZ,
        step_timeout_s=120.0,
    )
)

FAMILY: Final = FamilyManifest(
    name="sim",
    components=tuple(ComponentEntry(facts=facts, engine=_ENGINE) for facts in (THINKER, TALKER, DECODER)),
)
