"""The manifest of the generic family, whose stages serve any text model that vLLM supports except gpt-oss."""

from __future__ import annotations

from typing import Final

from omni_proto.pipeline.components import ComponentFacts, EngineKind
from omni_proto.stage_config import Modality
from omni_proto.tensors import TEXT
from omni_stage.models.manifest import ComponentEntry, FamilyManifest, describe

LLM: Final = describe(
    ComponentFacts(
        id="generic/llm",
        kind=EngineKind.AUTOREGRESSIVE,
        outputs=(Modality.TEXT,),
        reads=TEXT,
        reads_prompt=True,
        publishes=TEXT,
        writes_text=True,
        takes_reply=True,
        structures_text=True,
        takes_system_prompt=True,
        takes_tools=True,
    ),
    takes_prompt_embeds=True,
)

FAMILY: Final = FamilyManifest(
    name="generic",
    components=(ComponentEntry(facts=LLM, factory="omni_stage.models.generic.llm:build_component"),),
    # The architectures that generic stages run most often.
    prepared_architectures=("Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM"),
)
