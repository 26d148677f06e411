"""Picks one stage's part out of a Qwen3-Omni configuration for vLLM.

vLLM calls these in its own processes too (`hf_overrides`), so they are module-level functions that pickle by name. It
also calls them with a dummy configuration first, to see whether they change the model type.
"""

from __future__ import annotations

from typing import Any

from omni_stage.models.qwen3_omni.manifest import CODE2WAV_ARCHITECTURE


def pick_code2wav(config: Any) -> Any:
    """The configuration of code2wav, with the number that vLLM wants of every model."""
    code2wav = getattr(config, "code2wav_config", None)
    if code2wav is None:
        return config
    code2wav.architectures = [CODE2WAV_ARCHITECTURE]
    code2wav.vocab_size = code2wav.codebook_size
    return code2wav
