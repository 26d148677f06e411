"""Converts a GGUF file of a Llama-like model into a Hugging Face checkpoint in bfloat16. Needs numpy only.

The demo's language model is published on package indexes as GGUF alone. vLLM 0.32 reads no GGUF, and transformers keeps
the weights packed. The package gguf would add a dependency for what takes a hundred lines here: the file is mapped, and
each tensor is unpacked and written in turn, so memory stays small.
Format: ggml's docs/gguf.md; quantized blocks: ggml-quants.c.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_NUMBERS: Final = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
"""Kinds of metadata -> format of struct."""
_TEXT: Final = 8
_LIST: Final = 9
_MAX_ITEMS: Final = 1 << 22
_NAMES: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES: Final = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_CONTROL: Final = 3
"""tokenizer.ggml.token_type of special tokens."""


class GgufError(ValueError):
    """The file is not a GGUF file that can be converted."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of the file."""

    name: str
    shape: tuple[int, ...]
    """As in torch: rows first."""
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file, mapped into memory."""

    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]
    data: np.ndarray
    """uint8, from the first tensor on."""

    def read(self, tensor: GgufTensor) -> np.ndarray:
        """Returns the tensor's values, float32. Raises GgufError."""
        if tensor.kind not in _BLOCKS:
            raise GgufError(f"tensor {tensor.name[:80]!r} has the quantization {tensor.kind}, which is not supported")
        values, size, unpack = _BLOCKS[tensor.kind]
        count = int(np.prod(tensor.shape, dtype=np.int64))
        nbytes = count // values * size
        packed = self.data[tensor.offset : tensor.offset + nbytes]
        if count % values or packed.size != nbytes:
            raise GgufError(f"tensor {tensor.name[:80]!r} is cut off")
        return unpack(packed.reshape(-1, size)).reshape(tensor.shape)


def open_gguf(file: Path) -> GgufFile:
    """Map a file and read its metadata. Raises GgufError, OSError."""
    mapped = np.memmap(file, np.uint8, "r")
    reader = _Reader(mapped.data)
    try:
        if reader.take(4) != _MAGIC or reader.number("<I") not in _VERSIONS:
            raise GgufError("not a GGUF file of version 2 or 3")
        tensors, pairs = reader.number("<Q"), reader.number("<Q")
        if max(tensors, pairs) > _MAX_ITEMS:
            raise GgufError("its header is malformed")
        metadata = {reader.text(): reader.value(reader.number("<I")) for _ in range(pairs)}
        found = tuple(_read_tensor(reader) for _ in range(tensors))
    except (struct.error, UnicodeDecodeError, KeyError) as error:
        raise GgufError(f"its header is malformed ({type(error).__name__})") from error
    alignment = int(metadata.get("general.alignment", 32)) or 32
    begin = -(-reader.place // alignment) * alignment
    return GgufFile(metadata, found, mapped[begin:])


def convert(file: Path, directory: Path) -> None:
    """Write config.json, the tokenizer and model.safetensors of a Llama-like model. Raises GgufError, OSError."""
    gguf = open_gguf(file)
    metadata = gguf.metadata
    try:
        if metadata["general.architecture"] != "llama":
            raise GgufError(f"its architecture is {metadata['general.architecture']!r}, not llama")
        heads, kv_heads = metadata["llama.attention.head_count"], metadata["llama.attention.head_count_kv"]
        _write_json(directory / "config.json", _config(metadata, gguf))
        bos, eos = metadata["tokenizer.ggml.bos_token_id"], metadata["tokenizer.ggml.eos_token_id"]
        _write_json(
            directory / "generation_config.json", {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": eos}
        )
        _write_json(directory / "tokenizer.json", _tokenizer(metadata))
        _write_json(directory / "tokenizer_config.json", _tokenizer_config(metadata))
    except (KeyError, TypeError, IndexError) as error:
        raise GgufError(f"its metadata lacks {error}") from error

    def values(tensor: GgufTensor) -> np.ndarray:
        array = gguf.read(tensor)
        part = tensor.name.split(".")[-2]
        if part in ("attn_q", "attn_k"):
            # GGUF keeps the two halves of each head's rotation beside each other.
            count = heads if part == "attn_q" else kv_heads
            rows, columns = array.shape
            array = array.reshape(count, rows // count // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
        return array

    write_safetensors(
        directory / "model.safetensors",
        {_rename(tensor.name): tensor.shape for tensor in gguf.tensors},
        (values(tensor) for tensor in gguf.tensors),
    )


def write_safetensors(file: Path, shapes: Mapping[str, tuple[int, ...]], arrays: Iterator[np.ndarray]) -> None:
    """Write float32 arrays, in the order of `shapes`, as bfloat16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for array in arrays:
            out.write(to_bfloat16(array).tobytes())


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Returns the upper halves of float32 values, rounded to even, as uint16."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.place = 0

    def take(self, count: int) -> bytes:
        if self.place + count > len(self._data):
            raise GgufError("it is cut off")
        self.place += count
        return bytes(self._data[self.place - count : self.place])

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        return self.take(self.number("<Q")).decode()

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            item, count = self.number("<I"), self.number("<Q")
            if count > _MAX_ITEMS or item == _LIST:
                raise GgufError("a list of its header is malformed")
            return [self.value(item) for _ in range(count)]
        return self.number(_NUMBERS[kind])


def _read_tensor(reader: _Reader) -> GgufTensor:
    name, dimensions = reader.text(), reader.number("<I")
    if not 1 <= dimensions <= 4:
        raise GgufError("a tensor of its header is malformed")
    shape = tuple(reader.number("<Q") for _ in range(dimensions))
    return GgufTensor(name, shape[::-1], reader.number("<I"), reader.number("<Q"))


def _rename(name: str) -> str:
    base, _, part = name.rpartition(".")
    if base.startswith("blk."):
        _, layer, inner = base.split(".")
        if inner in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[inner]}.{part}"
    elif base in _NAMES:
        return f"{_NAMES[base]}.{part}"
    raise GgufError(f"tensor {name[:80]!r} is not one of a llama model")


def _config(metadata: Mapping[str, Any], gguf: GgufFile) -> dict[str, Any]:
    heads, hidden = metadata["llama.attention.head_count"], metadata["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": round(metadata["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": metadata["llama.rope.freq_base"],
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": not any(tensor.name == "output.weight" for tensor in gguf.tensors),
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.eos_token_id"],
    }


def _tokenizer(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns tokenizer.json of a byte-level BPE."""
    if metadata["tokenizer.ggml.model"] != "gpt2":
        raise GgufError(f"its tokenizer is {metadata['tokenizer.ggml.model']!r}, not a byte-level BPE")
    tokens = metadata["tokenizer.ggml.tokens"]
    special = [number for number, kind in enumerate(metadata["tokenizer.ggml.token_type"]) if kind == _CONTROL]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = [{"type": "Digits", "individual_digits": True}] if metadata.get("tokenizer.ggml.pre") == "smollm" else []
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": number,
                "content": tokens[number],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number in special
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*digits, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [pair.split(" ") for pair in metadata["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    bos, eos = (tokens[metadata[f"tokenizer.ggml.{name}_token_id"]] for name in ("bos", "eos"))
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": eos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        "chat_template": metadata["tokenizer.chat_template"],
    }


def _write_json(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _view(blocks: np.ndarray, form: str) -> np.ndarray:
    values: np.ndarray = np.ascontiguousarray(blocks).view(form).astype(np.float32)
    return values


def _half(blocks: np.ndarray, begin: int) -> np.ndarray:
    return _view(blocks[:, begin : begin + 2], "<f2")


def _nibbles(packed: np.ndarray) -> np.ndarray:
    return _view(np.concatenate([packed & 15, packed >> 4], axis=1), "u1")


def _scale(scales: np.ndarray, values: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = scales * values
    return scaled


def _unpack_q4_0(blocks: np.ndarray) -> np.ndarray:
    return _scale(_half(blocks, 0), _nibbles(blocks[:, 2:]) - 8)


def _unpack_q4_1(blocks: np.ndarray) -> np.ndarray:
    values = _scale(_half(blocks, 0), _nibbles(blocks[:, 4:]))
    values += _half(blocks, 2)
    return values


def _unpack_q8_0(blocks: np.ndarray) -> np.ndarray:
    return _scale(_half(blocks, 0), _view(blocks[:, 2:], "i1"))


def _unpack_q6_k(blocks: np.ndarray) -> np.ndarray:
    packed, high = blocks[:, :128].reshape(-1, 2, 64), blocks[:, 128:192].reshape(-1, 2, 1, 32)
    low = np.stack([packed & 15, packed >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = (high >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & 3
    values = (low | (high << 4)).astype(np.float32).reshape(-1, 16, 16) - 32
    scaled = _scale(values, _view(blocks[:, 192:208], "i1")[:, :, None])
    return _scale(_half(blocks, 208), scaled.reshape(-1, 256))


def _plain(form: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda blocks: _view(blocks, form)


_BLOCKS: Final[Mapping[int, tuple[int, int, Callable[[np.ndarray], np.ndarray]]]] = {
    0: (1, 4, _plain("<f4")),
    1: (1, 2, _plain("<f2")),
    2: (32, 18, _unpack_q4_0),
    3: (32, 20, _unpack_q4_1),
    8: (32, 34, _unpack_q8_0),
    14: (256, 210, _unpack_q6_k),
}
"""Quantization -> values and bytes of a block, and how to unpack blocks."""
