"""vLLM's plugin hook (entry point group vllm.general_plugins): makes our model classes known in every vLLM process."""

from __future__ import annotations

from typing import Final

from omni_stage.vllm_adapter.children import bind_to_parent

MODELS: Final = {
    "OmniQwen2_5Thinker": "omni_stage.models.qwen2_5_omni.thinker_model:ThinkerModel",
    "OmniQwen2_5Talker": "omni_stage.models.qwen2_5_omni.talker_model:TalkerModel",
    "OmniQwen2_5Token2Wav": "omni_stage.models.qwen2_5_omni.token2wav_model:Token2WavModel",
}
"""Model classes by the architecture name that the components' configurations carry."""


def register() -> None:
    """Register the models by name, so that no model code is imported before it is needed. Idempotent.

    In an engine's process it also ties that process to the stage server: no code of ours runs there earlier.
    """
    from vllm import ModelRegistry

    bind_to_parent()
    known = ModelRegistry.get_supported_archs()
    for architecture, model in MODELS.items():
        if architecture not in known:
            ModelRegistry.register_model(architecture, model)
