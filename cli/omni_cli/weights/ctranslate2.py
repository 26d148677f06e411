"""Converts Whisper from CTranslate2's format into a Hugging Face checkpoint. Needs no torch.

Package indexes hold Whisper in this format alone. Its tensors are half-precision floats, which are copied as they are;
only the projections that the format fuses are cut apart, and the tensors renamed.
Format: CTranslate2's python/ctranslate2/specs/model_spec.py; names: its specs/whisper_spec.py.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

_VERSION: Final = 6
_KINDS: Final = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}
_HALF: Final = 4
_MAX_TENSORS: Final = 1 << 14
_BLOCKS: Final = {
    ("self_attention", "linear_0"): ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attention", "linear_1"): ("self_attn.out_proj",),
    ("self_attention", "layer_norm"): ("self_attn_layer_norm",),
    ("attention", "linear_0"): ("encoder_attn.q_proj",),
    ("attention", "linear_1"): ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    ("attention", "linear_2"): ("encoder_attn.out_proj",),
    ("attention", "layer_norm"): ("encoder_attn_layer_norm",),
    ("ffn", "linear_0"): ("fc1",),
    ("ffn", "linear_1"): ("fc2",),
    ("ffn", "layer_norm"): ("final_layer_norm",),
}
_LEAVES: Final = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias", "encodings": "weight"}
_PLAIN: Final = {
    "conv1": "conv1",
    "conv2": "conv2",
    "position_encodings": "embed_positions",
    "layer_norm": "layer_norm",
    "embeddings": "embed_tokens",
}
_LAYER: Final = re.compile(r"(encoder|decoder)/layer_(\d+)/(\w+)/(\w+)/(\w+)")
_OTHER: Final = re.compile(r"(encoder|decoder)/(\w+)/(\w+)")


class CTranslate2Error(ValueError):
    """The file is not a Whisper model of CTranslate2 that can be converted."""


def convert_whisper(parts: Sequence[Path], config: Path, tokenizer: Path, directory: Path) -> None:
    """Write config.json, generation_config.json, the tokenizer's settings and model.safetensors.

    parts: the pieces of model.bin, in order. config, tokenizer: CTranslate2's config.json and tokenizer.json, which is
    already in its final form. Raises CTranslate2Error, OSError.
    """
    values = json.loads(config.read_text(encoding="utf-8"))
    ids = {item["content"]: item["id"] for item in json.loads(tokenizer.read_text(encoding="utf-8"))["added_tokens"]}
    data = np.concatenate([np.fromfile(part, np.uint8) for part in parts])
    tensors = dict(_rename(read_tensors(data.data)))
    positions, embeddings = (f"model.decoder.embed_{name}.weight" for name in ("positions", "tokens"))
    try:
        # CTranslate2 pads the vocabulary.
        tensors[embeddings] = tensors[embeddings][: ids["<|30.00|>"] + 1]
        written = {
            "config.json": _config(tensors, tensors[embeddings].shape, len(tensors[positions]), ids),
            "generation_config.json": _generation(values, len(tensors[positions]), ids),
            "preprocessor_config.json": _preprocessor(tensors["model.encoder.conv1.weight"].shape[1]),
            "tokenizer_config.json": _tokenizer(),
        }
    except KeyError as error:
        raise CTranslate2Error(f"it lacks {error}") from error
    for name, content in written.items():
        (directory / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    whole = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(whole, directory / "model.safetensors", {"format": "pt"})


def read_tensors(data: memoryview) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the names and the half-precision tensors of model.bin; settings are left out. Raises CTranslate2Error."""
    place = 0

    def take(count: int) -> memoryview:
        nonlocal place
        if place + count > len(data):
            raise CTranslate2Error("it is cut off")
        place += count
        return data[place - count : place]

    def number(form: str) -> int:
        return int(struct.unpack(form, take(struct.calcsize(form)))[0])

    def text() -> str:
        return bytes(take(number("<H"))).rstrip(b"\0").decode("utf-8", "replace")

    version, spec, _, count = number("<I"), text(), number("<I"), number("<I")
    if (version, spec) != (_VERSION, "WhisperSpec") or count > _MAX_TENSORS:
        raise CTranslate2Error(f"it is no Whisper model of CTranslate2's format {_VERSION}")
    for _ in range(count):
        name = text()
        shape = tuple(number("<I") for _ in range(number("<B")))
        kind, size = number("<B"), number("<I")
        raw = take(size)
        if not shape:
            continue
        if kind != _HALF:
            raise CTranslate2Error(f"tensor {name[:80]!r} is {_KINDS.get(kind, 'unknown')}, not half-precision")
        if size != 2 * int(np.prod(shape, dtype=np.int64)):
            raise CTranslate2Error(f"tensor {name[:80]!r} has another size than its shape")
        yield name, np.frombuffer(raw, "<f2").reshape(shape)


def _rename(tensors: Iterator[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors under the names of transformers. Keys have no bias there; CTranslate2 stores zeros."""
    for name, array in tensors:
        if match := _LAYER.fullmatch(name):
            side, layer, block, part, leaf = match.groups()
            targets = _BLOCKS.get((block, part), ())
            if not targets or leaf not in _LEAVES:
                raise CTranslate2Error(f"tensor {name[:80]!r} is not one of Whisper")
            for target, piece in zip(targets, np.split(array, len(targets)), strict=True):
                if not (target.endswith("k_proj") and leaf == "bias"):
                    yield f"model.{side}.layers.{layer}.{target}.{_LEAVES[leaf]}", piece
        elif (match := _OTHER.fullmatch(name)) and match[2] in _PLAIN and match[3] in _LEAVES:
            yield f"model.{match[1]}.{_PLAIN[match[2]]}.{_LEAVES[match[3]]}", array
        elif not name.startswith("decoder/projection") and "alignment" not in name:
            raise CTranslate2Error(f"tensor {name[:80]!r} is not one of Whisper")


def _config(
    tensors: Mapping[str, np.ndarray], embeddings: tuple[int, ...], positions: int, ids: Mapping[str, int]
) -> dict[str, Any]:
    def layers(side: str) -> int:
        return 1 + max(int(name.split(".")[3]) for name in tensors if name.startswith(f"model.{side}.layers."))

    vocabulary, width = embeddings
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "layers": layers(side),
            "attention_heads": width // 64,
            "ffn_dim": tensors[f"model.{side}.layers.0.fc1.weight"].shape[0],
        }.items()
    }
    end = ids["<|endoftext|>"]
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "d_model": width,
        **sides,
        "num_hidden_layers": layers("encoder"),
        "num_mel_bins": tensors["model.encoder.conv1.weight"].shape[1],
        "vocab_size": vocabulary,
        "max_source_positions": len(tensors["model.encoder.embed_positions.weight"]),
        "max_target_positions": positions,
        "activation_function": "gelu",
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": ids["<|startoftranscript|>"],
        "is_encoder_decoder": True,
        "scale_embedding": False,
        "torch_dtype": "float16",
    }


def _generation(values: Mapping[str, Any], positions: int, ids: Mapping[str, int]) -> dict[str, Any]:
    end, names = ids["<|endoftext|>"], {number: token for token, number in ids.items()}
    return {
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": ids["<|startoftranscript|>"],
        "is_multilingual": True,
        "lang_to_id": {names[number]: number for number in values["lang_ids"]},
        "task_to_id": {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "suppress_tokens": values["suppress_ids"],
        "begin_suppress_tokens": values["suppress_ids_begin"],
        "max_initial_timestamp_index": 50,
        "max_length": positions,
    }


def _preprocessor(mel_bins: int) -> dict[str, Any]:
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": mel_bins,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "chunk_length": 30,
        "n_fft": 400,
        "padding_value": 0.0,
        "padding_side": "right",
        "return_attention_mask": False,
    }


def _tokenizer() -> dict[str, Any]:
    end = "<|endoftext|>"
    return {
        "tokenizer_class": "WhisperTokenizer",
        "bos_token": end,
        "eos_token": end,
        "unk_token": end,
        "pad_token": end,
    }
