"""Writes the tiny checkpoint: tokenizer -> configuration -> weights -> directory.

- config.json has `rope_scaling` and `rope_theta` where transformers 5 has `rope_parameters`.
- The experts are stored one by one, and all tensors in bfloat16. transformers 5 fuses the experts when it loads them.
- The tokenizer consists of vocab.json, merges.txt and tokenizer_config.json. There is no tokenizer.json.
- preprocessor_config.json has no `chunk_length`. chat_template.json holds the template.
- generation_config.json has the talker's sampling values, and none for the thinker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

from omni_stage.errors import ConfigurationError
from omni_stage.models.qwen3_omni.tiny import weights
from omni_stage.models.qwen3_omni.tiny.shapes import (
    CHAT_TEMPLATE,
    PROCESSOR_TOKENS,
    ROLE_SENTENCES,
    ROLES,
    SHAPES,
    SPECIAL_TOKENS,
    TinyShape,
    config_dict,
)
from omni_stage.models.shared.config_file import quiet_transformers
from omni_stage.models.shared.tiny.shards import old_rope, write_json, write_shards
from omni_stage.models.shared.tiny.sizes import check_shape, find_shape
from omni_stage.models.shared.tiny.tokenizer import END_OF_TEXT, PADDING, legible_token_ids, train_tokenizer
from omni_stage.models.shared.tiny.weights import keep_rows

_TOKEN_PIXELS = 32 * 32


def write_tiny_checkpoint(
    directory: str | Path,
    seed: int = 0,
    shape: str | TinyShape = "small",
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
) -> Path:
    """Writes a complete tiny Qwen3-Omni checkpoint of a few MB into `directory`, in seconds. Returns `directory`.

    Creates the directory if needed. `dtype` is written to config.json: thinker and talker compute and send rows in this
    dtype, unless configured otherwise. It does not change the weights, which are stored in bfloat16. Equal seed and
    shape give equal weights. Raises ConfigurationError for an unknown shape or sizes that do not fit together.
    """
    sizes = find_shape(shape, SHAPES)
    check_shape(sizes, len(SPECIAL_TOKENS))
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    core = train_tokenizer(sizes.vocab_size, SPECIAL_TOKENS, ROLE_SENTENCES)
    values = config_dict(sizes, _find_roles(core))
    write_json(directory / "config.json", release_config(values, dtype))
    write_generation_config(directory)
    write_tokenizer(directory, core)
    write_preprocessor_config(directory, max_pixels=64 * _TOKEN_PIXELS, min_pixels=4 * _TOKEN_PIXELS)
    # The constructor draws from the global random generator, whose state must not change.
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        model = Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig(**values)).float().eval()
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    weights.fill_weights(model, seed)
    keep_rows(model.thinker.lm_head.weight, legible_token_ids(tokenizer))
    keep_rows(model.talker.codec_head.weight, [*range(sizes.audio_codes), model.talker.config.codec_eos_token_id])
    weights.end_after_text(model, sizes.vocab_size - len(SPECIAL_TOKENS))
    weights.make_audible(model.code2wav, seed)
    write_shards(directory, release_weights(model), metadata={"format": "pt"})
    return directory


def _find_roles(tokenizer: Tokenizer) -> dict[str, int]:
    """Returns the ids of the role names. Raises ConfigurationError if a name is not exactly one token."""
    ids = {role: tokenizer.encode(f"{role}\n", add_special_tokens=False).ids for role in ROLES}
    for role, found in ids.items():
        if len(found) != 2:
            raise ConfigurationError(
                f"vocab_size leaves no token for the role {role}; raise vocab_size", field="vocab_size"
            )
    return {role: found[0] for role, found in ids.items()}


TRANSFORMERS_VERSION: Final = "4.57.0.dev0"
"""The value in the published config.json."""
_MODEL_TYPES: Final = {
    "thinker_config": "qwen3_omni_moe_thinker",
    "talker_config": "qwen3_omni_moe_talker",
}
_EXPERTS: Final = "mlp.experts."


def release_config(values: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Returns config.json in the published format, from the arguments of Qwen3OmniMoeConfig, with `dtype`."""
    thinker, talker = dict(values["thinker_config"]), dict(values["talker_config"])
    thinker |= {
        "dtype": dtype,
        "text_config": {"model_type": "qwen3_omni_moe_text", **old_rope(thinker["text_config"])},
        "audio_config": {"model_type": "qwen3_omni_moe_audio_encoder", **thinker["audio_config"]},
        "vision_config": {"model_type": "qwen3_omni_moe_vision_encoder", **thinker["vision_config"]},
    }
    predictor = dict(talker["code_predictor_config"])
    theta = predictor.pop("rope_parameters")["rope_theta"]
    talker |= {
        "text_config": old_rope(talker["text_config"]),
        "code_predictor_config": {
            "model_type": "qwen3_omni_moe_talker_code_predictor",
            **predictor,
            "rope_scaling": None,
            "rope_theta": theta,
        },
    }
    code2wav = dict(values["code2wav_config"])
    code2wav["rope_theta"] = code2wav.pop("rope_parameters")["rope_theta"]
    rest = {name: value for name, value in values.items() if not name.endswith("_config")}
    return {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        **rest,
        "code2wav_config": {"model_type": "", **code2wav},
        "dtype": dtype,
        "model_type": "qwen3_omni_moe",
        "talker_config": {"model_type": _MODEL_TYPES["talker_config"], **talker},
        "thinker_config": {"model_type": _MODEL_TYPES["thinker_config"], **thinker},
        "transformers_version": TRANSFORMERS_VERSION,
    }


def write_generation_config(directory: Path) -> None:
    """Write generation_config.json, equal to the published one."""
    write_json(
        directory / "generation_config.json",
        {
            "talker_max_new_tokens": 4096,
            "talker_repetition_penalty": 1.05,
            "talker_temperature": 0.9,
            "talker_top_k": 50,
            "talker_top_p": 1.0,
        },
    )


def write_tokenizer(directory: Path, tokenizer: Tokenizer) -> None:
    """Write vocab.json, merges.txt, tokenizer_config.json and chat_template.json of a byte-level BPE tokenizer."""
    state = json.loads(tokenizer.to_str())
    added = {item["content"]: item["id"] for item in state["added_tokens"]}
    vocab = {token: token_id for token, token_id in state["model"]["vocab"].items() if token not in added}
    write_json(directory / "vocab.json", vocab)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in state["model"]["merges"]]
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    fixed = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    write_json(
        directory / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": {
                str(token_id): {"content": token, **fixed, "special": True} for token, token_id in added.items()
            },
            **PROCESSOR_TOKENS,
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": END_OF_TEXT,
            "errors": "replace",
            "extra_special_tokens": PROCESSOR_TOKENS,
            "model_max_length": 131_072,
            "pad_token": PADDING,
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        },
    )
    write_json(directory / "chat_template.json", {"chat_template": CHAT_TEMPLATE})


def write_preprocessor_config(directory: Path, *, max_pixels: int, min_pixels: int) -> None:
    """Write preprocessor_config.json with the published values, except for the bounds on image sizes."""
    thirds = [0.5, 0.5, 0.5]
    write_json(
        directory / "preprocessor_config.json",
        {
            "dither": 0.0,
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": 128,
            "hop_length": 160,
            "image_mean": thirds,
            "image_processor_type": "Qwen2VLImageProcessor",
            "image_std": thirds,
            "max_pixels": max_pixels,
            "merge_size": 2,
            "min_pixels": min_pixels,
            "n_fft": 400,
            "n_samples": 4_800_000,
            "nb_max_frames": 30_000,
            "padding_side": "right",
            "padding_value": 0.0,
            "patch_size": 16,
            "processor_class": "Qwen3OmniMoeProcessor",
            "return_attention_mask": True,
            "sampling_rate": 16_000,
            "temporal_patch_size": 2,
        },
    )


def release_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields names and bfloat16 tensors in the shards' order: thinker, talker, code2wav. Experts are separate."""
    state = model.state_dict()
    for part in ("thinker", "talker", "code2wav"):
        for name, tensor in state.items():
            if name.startswith(f"{part}."):
                for own, value in _release_tensor(name, tensor):
                    yield own, value.to(torch.bfloat16).contiguous()


def _release_tensor(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    layer, fused, projection = name.partition(_EXPERTS)
    if not fused:
        yield name, tensor
        return
    for index, expert in enumerate(tensor):
        if projection == "gate_up_proj":
            gate, up = expert.chunk(2)
            yield f"{layer}{_EXPERTS}{index}.gate_proj.weight", gate
            yield f"{layer}{_EXPERTS}{index}.up_proj.weight", up
        else:
            yield f"{layer}{_EXPERTS}{index}.{projection}.weight", expert
