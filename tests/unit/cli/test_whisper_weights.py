"""Whisper in CTranslate2's format as a Hugging Face checkpoint: the demo's speech recognizer."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from omni_cli.weights.ctranslate2 import CTranslate2Error, convert_whisper, read_tensors

WIDTH, LAYERS, VOCABULARY = 64, 2, 24
LANGUAGES = {"<|en|>": 2, "<|de|>": 3}
SPECIAL = {
    "<|endoftext|>": 0,
    "<|startoftranscript|>": 1,
    **LANGUAGES,
    "<|translate|>": 4,
    "<|transcribe|>": 5,
    "<|startofprev|>": 6,
    "<|notimestamps|>": 7,
    "<|30.00|>": 20,
}


def make_tensors() -> dict[str, np.ndarray]:
    """Returns the tensors of a small Whisper by CTranslate2's names."""
    rng = np.random.default_rng(1)

    def some(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype("<f2")

    def keyless(parts: int, key: int) -> np.ndarray:
        bias = some(parts, WIDTH)
        bias[key] = 0
        return bias.reshape(-1)

    made = {
        "decoder/embeddings/weight": some(VOCABULARY, WIDTH),
        "encoder/conv1/weight": some(WIDTH, 80, 3),
        "encoder/conv1/bias": some(WIDTH),
        "encoder/conv2/weight": some(WIDTH, WIDTH, 3),
        "encoder/conv2/bias": some(WIDTH),
    }
    for side, positions in (("encoder", 1500), ("decoder", 448)):
        made[f"{side}/position_encodings/encodings"] = some(positions, WIDTH)
        made |= {f"{side}/layer_norm/{name}": some(WIDTH) for name in ("gamma", "beta")}
        for layer in range(LAYERS):
            before = f"{side}/layer_{layer}"
            for block in ("self_attention", "ffn", *(["attention"] if side == "decoder" else [])):
                made |= {f"{before}/{block}/layer_norm/{name}": some(WIDTH) for name in ("gamma", "beta")}
            linear = {
                "self_attention/linear_0": (some(3 * WIDTH, WIDTH), keyless(3, 1)),
                "self_attention/linear_1": (some(WIDTH, WIDTH), some(WIDTH)),
                "ffn/linear_0": (some(96, WIDTH), some(96)),
                "ffn/linear_1": (some(WIDTH, 96), some(WIDTH)),
            }
            if side == "decoder":
                linear |= {
                    "attention/linear_0": (some(WIDTH, WIDTH), some(WIDTH)),
                    "attention/linear_1": (some(2 * WIDTH, WIDTH), keyless(2, 0)),
                    "attention/linear_2": (some(WIDTH, WIDTH), some(WIDTH)),
                }
            for name, (weight, bias) in linear.items():
                made |= {f"{before}/{name}/weight": weight, f"{before}/{name}/bias": bias}
    return made


def pack(tensors: dict[str, np.ndarray], *, spec: str = "WhisperSpec", kind: int = 4) -> bytes:
    """Returns model.bin, with one setting beside the tensors."""

    def text(value: str) -> bytes:
        data = value.encode() + b"\0"
        return struct.pack("<H", len(data)) + data

    parts = [struct.pack("<I", 6), text(spec), struct.pack("<II", 3, len(tensors) + 1)]
    parts += [text("decoder/num_heads"), struct.pack("<BBI", 0, 2, 2), struct.pack("<h", 8)]
    for name, array in tensors.items():
        parts += [text(name), struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)]
        parts += [struct.pack("<BI", kind, array.nbytes), array.tobytes()]
    return b"".join([*parts, struct.pack("<I", 0)])


def convert(folder: Path, data: bytes) -> None:
    half = len(data) // 2
    parts = [folder / "part1", folder / "part2"]
    parts[0].write_bytes(data[:half])
    parts[1].write_bytes(data[half:])
    config, tokenizer = folder / "ctranslate2.json", folder / "tokenizer.json"
    config.write_text(
        json.dumps({"lang_ids": [*LANGUAGES.values()], "suppress_ids": [8, 9], "suppress_ids_begin": [10]})
    )
    tokenizer.write_text(json.dumps({"added_tokens": [{"content": t, "id": n} for t, n in SPECIAL.items()]}))
    convert_whisper(parts, config, tokenizer, folder)


def test_transformers_loads_every_tensor(tmp_path: Path) -> None:
    from transformers import WhisperForConditionalGeneration

    tensors = make_tensors()
    convert(tmp_path, pack(tensors))
    model, info = WhisperForConditionalGeneration.from_pretrained(tmp_path, dtype="float32", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    state = model.state_dict()
    fused = tensors["decoder/layer_1/attention/linear_1/weight"].astype(np.float32)
    np.testing.assert_array_equal(state["model.decoder.layers.1.encoder_attn.v_proj.weight"], fused[WIDTH:])
    embedded = tensors["decoder/embeddings/weight"].astype(np.float32)
    np.testing.assert_array_equal(state["model.decoder.embed_tokens.weight"], embedded[:21])  # without the padding
    generation = model.generation_config
    assert generation.lang_to_id == LANGUAGES
    assert (generation.suppress_tokens, generation.begin_suppress_tokens) == ([8, 9], [10])
    assert model.config.decoder_ffn_dim == 96


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (pack({}, spec="TransformerSpec"), "no Whisper model"),
        (b"\x00" * 40, "no Whisper model"),
        (pack(make_tensors())[:-4000], "cut off"),
        (pack({"encoder/layer_0/self_attention/rotary/weight": np.zeros(4, "<f2")}), "not one of Whisper"),
        (pack({"x": np.zeros(4, "<f4")}, kind=0), "not half-precision"),
        (pack({}), "it lacks"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: bytes, problem: str) -> None:
    with pytest.raises(CTranslate2Error, match=problem):
        convert(tmp_path, data)
    assert not (tmp_path / "model.safetensors").exists()


def test_settings_are_no_tensors() -> None:
    tensors = {"encoder/conv1/bias": np.ones(3, "<f2")}
    ((name, array),) = read_tensors(memoryview(pack(tensors)))
    assert (name, array.tolist()) == ("encoder/conv1/bias", [1, 1, 1])
