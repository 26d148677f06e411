"""Writes the tiny checkpoint's files in the format of a published Qwen2.5-Omni checkpoint.

The published files were written by an older version of transformers than the one installed here. The tiny checkpoint
has the same format, so code that loads it also loads the published checkpoints:

- config.json has `rope_scaling` and `rope_theta` where transformers 5 has `rope_parameters`, and `torch_dtype` where
  transformers 5 has `dtype`. No library has the architectures that it names.
- generation_config.json names neither end tokens nor sampling values; the end of text is in `thinker_config`.
- preprocessor_config.json holds the settings for images and for audio at the same level. chat_template.json holds the
  template.
- Shards hold thinker and talker in bfloat16, token2wav in float32, the table of token2wav's rotary embedding, and no
  metadata. The index counts buffers that are in no shard. This is the form of the 7B model; the 3B model has metadata
  and a correct count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from omni_stage.models.shared.tiny.shards import old_rope, write_json

TRANSFORMERS_VERSION: Final = "4.50.0.dev0"
"""The value in the published files."""
ROTARY_TABLE: Final = "token2wav.code2wav_dit_model.rotary_embed.inv_freq"
"""A buffer that the published shards contain, and that transformers 5 computes."""
_SOUND_SETTINGS = (
    *("chunk_length", "dither", "feature_size", "hop_length", "n_fft", "n_samples", "nb_max_frames", "padding_side"),
    *("padding_value", "return_attention_mask", "sampling_rate"),
)
_IMAGE_SETTINGS = ("image_mean", "image_std", "merge_size", "patch_size", "temporal_patch_size")


def release_config(values: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Returns config.json in the published format, from the arguments of Qwen2_5OmniConfig, with `dtype`."""
    thinker, talker = dict(values["thinker_config"]), dict(values["talker_config"])
    token2wav = dict(values["token2wav_config"])
    dit = token2wav["dit_config"]
    thinker |= {
        "architectures": ["Qwen2OmniNaViTThinkerForConditionalGeneration"],
        "model_type": "qwen2_5_omni_thinker",
        "torch_dtype": dtype,
        "text_config": {"model_type": "qwen2_5_omni_text", **old_rope(thinker["text_config"])},
        "audio_config": {"model_type": "qwen2_5_omni_audio_encoder", **thinker["audio_config"]},
        "vision_config": {"model_type": "qwen2_5_omni_vision_encoder", **thinker["vision_config"]},
    }
    talker = old_rope(talker) | {
        "architectures": ["Qwen2OmniTalkerForConditionalGeneration"],
        "model_type": "qwen2_5_omni_talker",
        "torch_dtype": dtype,
    }
    token2wav |= {
        "model_type": "qwen2_5_omni_token2wav",
        # Each size has both the published name (depth, dim, heads) and the name that transformers reads. The published
        # file has only the former, because its sizes are transformers' defaults.
        "dit_config": {
            "model_type": "qwen2_5_omni_dit",
            "torch_dtype": "float32",
            "depth": dit["num_hidden_layers"],
            "dim": dit["hidden_size"],
            "heads": dit["num_attention_heads"],
            **dit,
        },
        "bigvgan_config": {"model_type": "qwen2_5_omni_bigvgan", **token2wav["bigvgan_config"]},
    }
    return {
        "architectures": ["Qwen2_5OmniModel"],
        "enable_audio_output": True,
        "enable_talker": True,
        "model_type": "qwen2_5_omni",
        "talker_config": talker,
        "thinker_config": thinker,
        "token2wav_config": token2wav,
        "torch_dtype": dtype,
        "transformers_version": TRANSFORMERS_VERSION,
    }


def write_generation_config(directory: Path) -> None:
    """Write generation_config.json, equal to the published one."""
    write_json(
        directory / "generation_config.json",
        {"_from_model_config": True, "transformers_version": TRANSFORMERS_VERSION},
    )


def write_processor(directory: Path, processor: Any) -> None:
    """Write the files of a Qwen2_5OmniProcessor: settings for images and audio, chat template, and tokenizer."""
    processor.tokenizer.chat_template = None
    processor.tokenizer.save_pretrained(directory)
    sound, images = processor.feature_extractor, processor.image_processor
    settings = {name: getattr(sound, name) for name in _SOUND_SETTINGS}
    settings |= {name: getattr(images, name) for name in _IMAGE_SETTINGS}
    settings |= {
        "feature_extractor_type": type(sound).__name__,
        "image_processor_type": type(images).__name__,
        "max_pixels": images.size["longest_edge"],
        "min_pixels": images.size["shortest_edge"],
        "processor_class": type(processor).__name__,
    }
    write_json(directory / "preprocessor_config.json", dict(sorted(settings.items())))
    write_json(directory / "chat_template.json", {"chat_template": processor.chat_template})


def release_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields names and tensors as the shards hold them, in the published order: thinker, talker, token2wav."""
    state = model.state_dict()
    for part, dtype in (("thinker", torch.bfloat16), ("talker", torch.bfloat16), ("token2wav", torch.float32)):
        for name, tensor in state.items():
            if name.startswith(f"{part}."):
                yield name, tensor.to(dtype).contiguous()
    yield ROTARY_TABLE, model.token2wav.code2wav_dit_model.rotary_embed.inv_freq.float().contiguous()
