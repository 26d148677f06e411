"""A thinker of Qwen3-Omni in 8 bits, of the published sizes: every tensor of the layout has a place in vLLM's model.

Layout: compressed-tensors as llm-compressor's scheme FP8_DYNAMIC writes it, a scale for each output of a linear layer
of the decoder, its experts included; router, encoders and output layer dense. On the meta device: nothing is computed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_stage.errors import ConfigurationError
from support.meta_models import create_vllm_config, meta_model, one_rank
from support.published import QWEN3, meta_weights, write_published_qwen3, write_sparse_shards
from support.qwen3_published import thinker_of

pytestmark = pytest.mark.engine

FP8: dict[str, Any] = {
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True,
            },
        }
    },
    "format": "float-quantized",
    "ignore": ["re:.*lm_head", "re:.*visual.*", "re:.*audio_tower.*", "re:.*mlp.gate$", "re:^talker.*"],
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}  # fmt: skip
LINEAR = re.compile(
    r"thinker\.model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.experts\.\d+\.(gate|up|down)_proj)\.weight"
)
LAYERS, EXPERTS = 48, 128


def quantized_weights() -> Iterator[tuple[str, torch.Tensor]]:
    """The published tensors in that layout."""
    for name, tensor in meta_weights(QWEN3):
        if LINEAR.fullmatch(name) is None:
            yield name, tensor
            continue
        yield name, tensor.to(torch.float8_e4m3fn)
        yield f"{name}_scale", torch.empty(tensor.shape[0], 1, dtype=torch.bfloat16, device="meta")


def test_every_tensor_has_its_place(tmp_path: Path) -> None:
    checkpoint = write_published_qwen3(tmp_path / "published")
    write_sparse_shards(checkpoint, QWEN3)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "quantization_config": FP8}))
    with (
        one_rank(tmp_path),
        meta_model(create_vllm_config("thinker", checkpoint, thinker_of(checkpoint))) as model,
    ):
        experts = model.get_submodule("language_model.model.layers.0.mlp.experts")
        assert {weight.dtype for weight in experts.parameters()} == {torch.float8_e4m3fn, torch.float32}
        given = [name for name, _ in quantized_weights() if name.endswith("_scale")]
        assert len(given) == LAYERS * (4 + 3 * EXPERTS)
        loaded = model.load_weights(quantized_weights())
        # vLLM makes scales of the KV cache, which this layout does not have.
        cache = {name for name, _ in model.named_parameters() if re.search(r"\.attn\.[qkv]_scale|prob_scale", name)}
        assert loaded | cache == {name for name, _ in model.named_parameters()}
        gone = {given[0], given[-1]}
        with pytest.raises(ConfigurationError, match="2 tensors are missing") as caught:
            model.load_weights(item for item in quantized_weights() if item[0] not in gone)
        assert all(name in str(caught.value) for name in gone)
