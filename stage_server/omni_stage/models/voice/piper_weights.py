"""Reads a Piper voice's ONNX file: its sizes from the graph, its weights under transformers' names.

The exporter folds weight normalization into plain weights and names these by number (onnx::Conv_8168). The names of the
nodes still say which layer reads them. A model with one speaker has its embedding under the name "sid". The exporter
may also fold exp(-logs) of the duration predictor's first flow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from omni_stage.errors import ConfigurationError
from omni_stage.models.voice.onnx_file import Node, OnnxFile, read_onnx

_RULES: Final = tuple(
    (re.compile(f"{pattern}\\Z"), target)
    for pattern, target in (
        (r"enc_p\.emb\.weight", "text_encoder.embed_tokens.weight"),
        (r"enc_p\.proj\.(weight|bias)", r"text_encoder.project.\1"),
        (
            r"enc_p\.encoder\.attn_layers\.(\d+)\.conv_([qkv])\.(weight|bias)",
            r"text_encoder.encoder.layers.\1.attention.\2_proj.\3",
        ),
        (
            r"enc_p\.encoder\.attn_layers\.(\d+)\.conv_o\.(weight|bias)",
            r"text_encoder.encoder.layers.\1.attention.out_proj.\2",
        ),
        (
            r"enc_p\.encoder\.attn_layers\.(\d+)\.emb_rel_([kv])",
            r"text_encoder.encoder.layers.\1.attention.emb_rel_\2",
        ),
        (r"enc_p\.encoder\.norm_layers_1\.(\d+)\.(\w+)", r"text_encoder.encoder.layers.\1.layer_norm.\2"),
        (r"enc_p\.encoder\.norm_layers_2\.(\d+)\.(\w+)", r"text_encoder.encoder.layers.\1.final_layer_norm.\2"),
        (
            r"enc_p\.encoder\.ffn_layers\.(\d+)\.(conv_[12]\.\w+)",
            r"text_encoder.encoder.layers.\1.feed_forward.\2",
        ),
        (r"dp\.pre\.(\w+)", r"duration_predictor.conv_pre.\1"),
        (r"dp\.proj\.(\w+)", r"duration_predictor.conv_proj.\1"),
        (r"dp\.cond\.(\w+)", r"duration_predictor.cond.\1"),
        (r"dp\.convs\.(.+)", r"duration_predictor.conv_dds.\1"),
        (r"dp\.flows\.0\.m", "duration_predictor.flows.0.translate"),
        (r"dp\.flows\.0\.logs", "duration_predictor.flows.0.log_scale"),
        (r"dp\.flows\.(\d+)\.(pre|proj)\.(\w+)", r"duration_predictor.flows.<half>\1.conv_\2.\3"),
        (r"dp\.flows\.(\d+)\.convs\.(.+)", r"duration_predictor.flows.<half>\1.conv_dds.\2"),
        (r"dp\.(conv_[12]|norm_[12])\.(\w+)", r"duration_predictor.\1.\2"),
        (r"flow\.flows\.(\d+)\.(pre|post)\.(\w+)", r"flow.flows.<half>\1.conv_\2.\3"),
        (r"flow\.flows\.(\d+)\.enc\.(.+)", r"flow.flows.<half>\1.wavenet.\2"),
        (r"dec\.ups\.(\d+)\.(\w+)", r"decoder.upsampler.\1.\2"),
        (r"dec\.(conv_pre|conv_post|cond|resblocks\..+)\.(\w+)", r"decoder.\1.\2"),
        (r"emb_g\.weight", "embed_speaker.weight"),
    )
)
_HALF: Final = re.compile(r"<half>(\d+)")
"""transformers numbers only the layers with weights; the flips between them have no number."""
_PARTS: Final = (
    (".gamma", ".weight"),
    (".beta", ".bias"),
    ("convs_sep.", "convs_dilated."),
    ("convs_1x1.", "convs_pointwise."),
)
_FOLDED_SCALE: Final = "/dp/flows.0/Exp_output_0"
_CONVOLUTIONS: Final = ("Conv", "ConvTranspose")
_PRESENT: Final = "text_encoder.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class PiperWeights:
    """A voice's weights by transformers' names, and the configuration that follows from the graph."""

    tensors: Mapping[str, np.ndarray]
    unknown: tuple[str, ...]
    """Names of weights in the file that VITS does not have."""
    config: Mapping[str, Any]
    """Arguments of transformers' VitsConfig."""

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields names and tensors; unknown ones under their names in the file."""
        for name, array in self.tensors.items():
            yield name, torch.from_numpy(np.array(array, np.float32))
        for name in self.unknown:
            yield name, torch.zeros(0)


def read_piper(file: Path) -> PiperWeights:
    """Returns the weights of a voice's ONNX file. Raises ConfigurationError."""
    onnx = read_onnx(file)
    named = _name_weights(onnx)
    tensors: dict[str, np.ndarray] = {}
    unknown: list[str] = []
    for name, array in named.items():
        target = _rename(name)
        if target is None:
            unknown.append(name)
        else:
            tensors[target] = _reshape(target, array)
    if _PRESENT not in tensors:
        raise ConfigurationError(f"{file} is not a Piper voice: it has no embedding of phonemes", field="model.path")
    try:
        config = _read_config(onnx, tensors)
    except (KeyError, IndexError, ValueError, TypeError, ZeroDivisionError) as error:
        raise ConfigurationError(
            f"{file} is not a Piper voice that this stage can run: {type(error).__name__} {error} while its sizes were "
            "read",
            field="model.path",
        ) from error
    return PiperWeights(tensors, tuple(unknown), config)


def _name_weights(onnx: OnnxFile) -> dict[str, np.ndarray]:
    """Returns the weights by the names that they had in Piper's model."""
    named: dict[str, np.ndarray] = {}
    taken: set[str] = set()

    def take(name: str, source: str) -> None:
        if source in onnx.tensors:
            named[name] = onnx.tensors[source]
            taken.add(source)

    for node in onnx.nodes:
        base = _module(node)
        if node.operator in _CONVOLUTIONS and base:
            for part, source in zip(("weight", "bias"), node.inputs[1:], strict=False):
                take(f"{base}.{part}", source)
        elif node.operator == "Gather" and base in ("enc_p.emb", "emb_g"):
            take(f"{base}.weight", node.inputs[0])
    if _FOLDED_SCALE in onnx.tensors:
        named["dp.flows.0.logs"] = -np.log(onnx.tensors[_FOLDED_SCALE])
        taken.add(_FOLDED_SCALE)
    for name, array in onnx.tensors.items():
        # Single numbers and integers are constants of the graph, not weights.
        if name not in taken and array.dtype.kind == "f" and (array.size > 1 or _rename(name)):
            named[name] = array
    return named


def _module(node: Node) -> str:
    """Returns the module that a node belongs to, as in dec.ups.0 of /dec/ups.0/ConvTranspose."""
    return node.name.strip("/").rpartition("/")[0].replace("/", ".")


def _rename(name: str) -> str | None:
    for pattern, target in _RULES:
        match = pattern.match(name)
        if match is not None:
            renamed = _HALF.sub(_halve(name), match.expand(target))
            for old, new in _PARTS:
                renamed = renamed.replace(old, new)
            return renamed
    return None


def _halve(name: str) -> Any:
    # The duration predictor's flows are 0 (scale), 3, 5, 7; those of the prior 0, 2, 4, 6.
    offset = 1 if name.startswith("dp.") else 0
    return lambda match: str((int(match[1]) + offset) // 2)


def _reshape(name: str, array: np.ndarray) -> np.ndarray:
    """Returns the weight as transformers shapes it: attention has linear layers in place of convolutions of size 1."""
    is_linear = ".attention." in name and name.endswith("_proj.weight")
    return array[:, :, 0] if is_linear and array.ndim == 3 else array


def _read_config(onnx: OnnxFile, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    def shape(name: str) -> tuple[int, ...]:
        return tensors[name].shape

    def count(prefix: str) -> int:
        return 1 + max(int(name[len(prefix) :].split(".")[0]) for name in tensors if name.startswith(prefix))

    convolutions = {_module(node): node for node in onnx.nodes if node.operator in _CONVOLUTIONS}
    vocab, hidden = shape(_PRESENT)
    first = "text_encoder.encoder.layers.0"
    ffn, _, ffn_kernel = shape(f"{first}.feed_forward.conv_1.weight")
    _, window, head = shape(f"{first}.attention.emb_rel_k")
    flow_size = shape("text_encoder.project.weight")[0] // 2
    stages = count("decoder.upsampler.")
    kernels = count("decoder.resblocks.") // stages
    is_second = "decoder.resblocks.0.convs.0.weight" in tensors
    part = "convs" if is_second else "convs1"
    stochastic = "duration_predictor.conv_pre.weight" in tensors
    speakers, speaker_size = shape("embed_speaker.weight") if "embed_speaker.weight" in tensors else (1, 0)
    config = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": count("text_encoder.encoder.layers."),
        "num_attention_heads": hidden // head,
        "window_size": (window - 1) // 2,
        "ffn_dim": ffn,
        "ffn_kernel_size": ffn_kernel,
        "flow_size": flow_size,
        "use_stochastic_duration_prediction": stochastic,
        "num_speakers": speakers,
        "speaker_embedding_size": speaker_size,
        "upsample_initial_channel": shape("decoder.conv_pre.weight")[0],
        "upsample_rates": [convolutions[f"dec.ups.{stage}"].strides[0] for stage in range(stages)],
        "upsample_kernel_sizes": [shape(f"decoder.upsampler.{stage}.weight")[2] for stage in range(stages)],
        "resblock_kernel_sizes": [shape(f"decoder.resblocks.{index}.{part}.0.weight")[2] for index in range(kernels)],
        "resblock_dilation_sizes": [
            [
                convolutions[f"dec.resblocks.{index}.{part}.{layer}"].dilations[0]
                for layer in range(count(f"decoder.resblocks.{index}.{part}."))
            ]
            for index in range(kernels)
        ],
        "resblock": "2" if is_second else "1",
        "prior_encoder_num_flows": count("flow.flows."),
        "prior_encoder_num_wavenet_layers": count("flow.flows.0.wavenet.in_layers."),
        "wavenet_kernel_size": shape("flow.flows.0.wavenet.in_layers.0.weight")[2],
        "wavenet_dilation_rate": _dilation_rate(convolutions, count("flow.flows.0.wavenet.in_layers.")),
    }
    if stochastic:
        bins = shape("duration_predictor.flows.2.conv_proj.weight")[0]
        config |= {
            "depth_separable_num_layers": count("duration_predictor.conv_dds.convs_dilated."),
            "duration_predictor_kernel_size": shape("duration_predictor.conv_dds.convs_dilated.0.weight")[2],
            "duration_predictor_num_flows": count("duration_predictor.flows.") - 1,
            "duration_predictor_flow_bins": (bins + 1) // 3,
        }
    else:
        filters, _, kernel = shape("duration_predictor.conv_1.weight")
        config |= {"duration_predictor_filter_channels": filters, "duration_predictor_kernel_size": kernel}
    return config


def _dilation_rate(convolutions: Mapping[str, Node], layers: int) -> int:
    return convolutions["flow.flows.0.enc.in_layers.1"].dilations[0] if layers > 1 else 1
