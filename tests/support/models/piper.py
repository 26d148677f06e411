"""Writes a voice in transformers' format as a Piper voice: an ONNX file with folded weights, and its settings."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path

import torch

from omni_stage.models.voice.checkpoint import read_checkpoint
from omni_stage.models.voice.weights import read_weights

_TO_PIPER = (
    ("text_encoder.embed_tokens", "enc_p.emb"),
    ("text_encoder.project", "enc_p.proj"),
    (".attention.out_proj", ".attention.conv_o"),
    ("duration_predictor.conv_pre", "dp.pre"),
    ("duration_predictor.conv_proj", "dp.proj"),
    ("duration_predictor.conv_dds", "dp.convs"),
    ("duration_predictor.flows.0.translate", "dp.flows.0.m"),
    ("duration_predictor.flows.0.log_scale", "dp.flows.0.logs"),
    ("duration_predictor.", "dp."),
    ("decoder.upsampler", "dec.ups"),
    ("decoder.", "dec."),
    ("embed_speaker", "emb_g"),
    ("convs_dilated", "convs_sep"),
    ("convs_pointwise", "convs_1x1"),
    (".wavenet.", ".enc."),
)


def write_piper_voice(directory: Path, source: Path, *, leave_out: str = "", extra: str = "") -> Path:
    """Writes the voice in `source`, in transformers' format. Returns `directory`.

    `leave_out`: a weight by its name in Piper's model that the file lacks; `extra`: one more weight.
    """
    checkpoint = read_checkpoint(source)
    config, weights = read_weights(checkpoint)
    directory.mkdir(parents=True, exist_ok=True)
    nodes: list[bytes] = []
    tensors: list[bytes] = []
    for name, tensor in weights:
        piper = piper_name(name)
        if piper == leave_out:
            continue
        if ".attention." in name and name.endswith("proj.weight"):
            tensor = tensor[:, :, None]
        module, _, part = piper.rpartition(".")
        stored = piper
        if part == "weight" and tensor.dim() == 3:
            stored = f"onnx::Conv_{len(tensors)}"  # the exporter folds weight normalization
            operator = "ConvTranspose" if ".ups." in piper else "Conv"
            nodes.append(_node(operator, module, ["x", stored, f"{module}.bias"], _attributes(module, config)))
        elif piper == "enc_p.emb.weight":
            stored = "sid" if config.num_speakers == 1 else piper
            nodes.append(_node("Gather", "enc_p.emb", [stored, "x"], {}))
        tensors.append(_tensor(stored, tensor))
    if extra:
        tensors.append(_tensor(extra, torch.ones(2, 2)))
    graph = b"".join([*(_field(1, node) for node in nodes), *(_field(5, tensor) for tensor in tensors)])
    (directory / "xx_XX-tiny-low.onnx").write_bytes(_field(7, graph))
    settings = {
        "audio": {"sample_rate": checkpoint.sample_rate_hz},
        "inference": {"noise_scale": 0.667, "length_scale": 1, "noise_w": 0.8},
        "phoneme_type": "text",
        "num_speakers": config.num_speakers,
        "speaker_id_map": checkpoint.settings.get("speaker_id_map", {}),
        "phoneme_id_map": {"_": [0], "^": [1], "$": [2], **{c: [3 + i] for i, c in enumerate(" abcdefghijklmnopqrst")}},
    }
    (directory / "xx_XX-tiny-low.onnx.json").write_text(json.dumps(settings), encoding="utf-8")
    return directory


def piper_name(name: str) -> str:
    """Returns a weight's name in Piper's model."""
    parts = name.split(".")
    if name.startswith("text_encoder.encoder.layers."):
        layer, rest = parts[3], ".".join(parts[4:])
        for old, new in (
            ("attention.emb", f"attn_layers.{layer}.emb"),
            ("attention.out_proj", f"attn_layers.{layer}.conv_o"),
            ("attention.q_proj", f"attn_layers.{layer}.conv_q"),
            ("attention.k_proj", f"attn_layers.{layer}.conv_k"),
            ("attention.v_proj", f"attn_layers.{layer}.conv_v"),
            ("layer_norm", f"norm_layers_1.{layer}"),
            ("final_layer_norm", f"norm_layers_2.{layer}"),
            ("feed_forward", f"ffn_layers.{layer}"),
        ):
            if rest.startswith(old):
                return _norm(f"enc_p.encoder.{new}{rest.removeprefix(old)}")
    if name.startswith("duration_predictor.flows.") and parts[2] != "0":
        name = ".".join(["dp", "flows", str(2 * int(parts[2]) - 1), *parts[3:]])
    elif name.startswith("flow.flows."):
        name = ".".join(["flow", "flows", str(2 * int(parts[2])), *parts[3:]])
    for old, new in _TO_PIPER:
        name = name.replace(old, new)
    if ".flows." in name:
        name = name.replace("conv_dds", "convs").replace("conv_p", "p")
    return _norm(name)


def _norm(name: str) -> str:
    if ".norm" not in name:
        return name
    return name.replace(".weight", ".gamma").replace(".bias", ".beta")


def _attributes(module: str, config) -> dict[str, int]:  # type: ignore[no-untyped-def]
    numbers = [int(part) for part in module.split(".") if part.isdigit()]
    if ".ups." in module:
        return {"strides": config.upsample_rates[numbers[0]]}
    if ".resblocks." in module:
        kernels = len(config.resblock_kernel_sizes)
        dilations = config.resblock_dilation_sizes[numbers[0] % kernels]
        return {"dilations": 1 if ".convs2." in module else dilations[numbers[1]]}
    return {}


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _node(operator: str, module: str, inputs: Iterable[str], attributes: dict[str, int]) -> bytes:
    name = f"/{module.replace('.', '/')}/{operator}"
    # The exporter writes a module's number after a dot: /dec/ups.0/ConvTranspose.
    for digit in range(10):
        name = name.replace(f"/{digit}", f".{digit}")
    body = (
        b"".join(_field(1, item.encode()) for item in inputs) + _field(3, name.encode()) + _field(4, operator.encode())
    )
    for key, value in attributes.items():
        body += _field(5, _field(1, key.encode()) + _field(8, value))
    return body


def _tensor(name: str, tensor: torch.Tensor) -> bytes:
    raw = struct.pack(f"<{tensor.numel()}f", *tensor.flatten().tolist())
    shape = b"".join(_field(1, size) for size in tensor.shape)
    return shape + _field(2, 1) + _field(8, name.encode()) + _field(9, raw)
