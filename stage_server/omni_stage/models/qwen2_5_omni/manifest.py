"""The manifest of Qwen2.5-Omni."""

from __future__ import annotations

from typing import Final

from omni_proto.pipeline.components import ComponentFacts, EngineKind, Refusal
from omni_proto.stage_config import Modality, SamplingDefaults
from omni_stage.models.manifest import ComponentEntry, FamilyManifest, TinyCheckpoint, describe

_PACKAGE: Final = "omni_stage.models.qwen2_5_omni"

THINKER_ARCHITECTURE: Final = "OmniQwen2_5Thinker"
TALKER_ARCHITECTURE: Final = "OmniQwen2_5Talker"
TOKEN2WAV_ARCHITECTURE: Final = "OmniQwen2_5Token2Wav"

THINKER_TO_TALKER: Final = "qwen2_5_omni/thinker2talker"
TALKER_TO_TOKEN2WAV: Final = "qwen2_5_omni/talker2token2wav"
DEFAULT_STEPS: Final = 10
"""Number of time points of token2wav's solver, both ends included."""
_VOICES: Final = ("Chelsie", "Ethan")

THINKER: Final = describe(
    ComponentFacts(
        id="qwen2_5_omni/thinker",
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
        id="qwen2_5_omni/talker",
        kind=EngineKind.AUTOREGRESSIVE,
        reads=THINKER_TO_TALKER,
        publishes=TALKER_TO_TOKEN2WAV,
        streams_input=True,
        voices=_VOICES,
        # The defaults of transformers' Qwen2_5OmniForConditionalGeneration.generate().
        default_sampling=SamplingDefaults(
            temperature=0.9, top_k=40, top_p=0.8, repetition_penalty=1.05, max_tokens=4096
        ),
    )
)
TOKEN2WAV: Final = describe(
    ComponentFacts(
        id="qwen2_5_omni/token2wav",
        kind=EngineKind.DIFFUSION,
        outputs=(Modality.AUDIO,),
        reads=TALKER_TO_TOKEN2WAV,
        streams_input=True,
        voices=_VOICES,
        # No configuration file states the rate.
        sample_rate_hz=24_000,
        step_timeout_s=120.0,
        queue_timeout_s=120.0,
        # The model is not sharded: a second GPU would only repeat the work of the first.
        max_gpus=1,
        # The defaults of num_steps and guidance_scale in transformers' Qwen2_5OmniToken2WavModel.forward().
        default_sampling=SamplingDefaults(num_inference_steps=DEFAULT_STEPS, guidance_scale=0.5),
        refused_sampling=(
            Refusal(
                field="num_inference_steps",
                why="must be at least 2, the first and the last point of the solver",
                remedy="raise it",
                minimum=2,
            ),
        ),
    )
)

FAMILY: Final = FamilyManifest(
    name="qwen2_5_omni",
    components=(
        ComponentEntry(
            facts=THINKER, factory=f"{_PACKAGE}.thinker.component:build_component", weight_prefixes=("thinker.",)
        ),
        ComponentEntry(
            facts=TALKER,
            factory=f"{_PACKAGE}.talker.component:build_component",
            # The talker reads a few rows of the thinker's embedding: the start, end and padding of the text.
            weight_prefixes=("talker.", "thinker.model.embed_tokens."),
        ),
        ComponentEntry(
            facts=TOKEN2WAV, factory=f"{_PACKAGE}.token2wav.component:build_component", weight_prefixes=("token2wav.",)
        ),
    ),
    model_classes={
        THINKER_ARCHITECTURE: f"{_PACKAGE}.thinker.model:ThinkerModel",
        TALKER_ARCHITECTURE: f"{_PACKAGE}.talker.model:TalkerModel",
        TOKEN2WAV_ARCHITECTURE: f"{_PACKAGE}.token2wav.model:Token2WavModel",
    },
    # The architecture of the thinker's language model.
    prepared_architectures=("Qwen2ForCausalLM",),
    tiny_checkpoint=TinyCheckpoint(writer=f"{_PACKAGE}.tiny:write_tiny_checkpoint", shapes=("small", "gqa")),
)
