"""The manifest of Qwen3-Omni."""

from __future__ import annotations

from typing import Final

from omni_proto.pipeline.components import ComponentFacts, EngineKind
from omni_proto.stage_config import Modality, SamplingDefaults
from omni_stage.models.manifest import ComponentEntry, FamilyManifest, TinyCheckpoint, describe

_PACKAGE: Final = "omni_stage.models.qwen3_omni"

THINKER_ARCHITECTURE: Final = "OmniQwen3Thinker"
TALKER_ARCHITECTURE: Final = "OmniQwen3Talker"
CODE2WAV_ARCHITECTURE: Final = "OmniQwen3Code2Wav"

THINKER_TO_TALKER: Final = "qwen3_omni/thinker2talker"
TALKER_TO_CODE2WAV: Final = "qwen3_omni/talker2code2wav"

THINKER: Final = describe(
    ComponentFacts(
        id="qwen3_omni/thinker",
        kind=EngineKind.AUTOREGRESSIVE,
        outputs=(Modality.TEXT,),
        publishes=THINKER_TO_TALKER,
        media=("image", "audio", "video"),
        writes_text=True,
        takes_reply=True,
        structures_text=True,
    ),
    publishes_rows=True,
    reuses_rows=True,
    takes_prompt_embeds=True,
)
TALKER: Final = describe(
    ComponentFacts(
        id="qwen3_omni/talker",
        kind=EngineKind.AUTOREGRESSIVE,
        reads=THINKER_TO_TALKER,
        publishes=TALKER_TO_CODE2WAV,
        streams_input=True,
        voices=("Ethan", "Chelsie", "Aiden"),
        # The defaults of the published generation_config.json and of transformers' generate().
        default_sampling=SamplingDefaults(
            temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05, max_tokens=4096
        ),
    )
)
CODE2WAV: Final = describe(
    ComponentFacts(
        id="qwen3_omni/code2wav",
        kind=EngineKind.DECODER,
        outputs=(Modality.AUDIO,),
        reads=TALKER_TO_CODE2WAV,
        streams_input=True,
        # 12.5 frames a second, 1,920 samples each. No configuration file states the rate.
        sample_rate_hz=24_000,
        step_timeout_s=60.0,
        queue_timeout_s=120.0,
        # The model is not sharded: a second GPU would only repeat the work of the first.
        max_gpus=1,
    )
)

FAMILY: Final = FamilyManifest(
    name="qwen3_omni",
    components=(
        ComponentEntry(
            facts=THINKER, factory=f"{_PACKAGE}.thinker.component:build_component", weight_prefixes=("thinker.",)
        ),
        ComponentEntry(
            facts=TALKER,
            factory=f"{_PACKAGE}.talker.component:build_component",
            # Text arrives as token ids, for which the talker reads rows of the thinker's embedding.
            weight_prefixes=("talker.", "thinker.model.embed_tokens."),
        ),
        ComponentEntry(
            facts=CODE2WAV, factory=f"{_PACKAGE}.code2wav.component:build_component", weight_prefixes=("code2wav.",)
        ),
    ),
    model_classes={
        THINKER_ARCHITECTURE: f"{_PACKAGE}.thinker.model:ThinkerModel",
        TALKER_ARCHITECTURE: f"{_PACKAGE}.talker.model:TalkerModel",
        CODE2WAV_ARCHITECTURE: f"{_PACKAGE}.code2wav.model:Code2WavModel",
    },
    # The architecture of the thinker's language model.
    prepared_architectures=("Qwen3MoeForCausalLM",),
    tiny_checkpoint=TinyCheckpoint(writer=f"{_PACKAGE}.tiny:write_tiny_checkpoint", shapes=("small", "wide")),
)
