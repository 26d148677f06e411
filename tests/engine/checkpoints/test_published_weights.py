"""Our model classes load the tensors of Qwen2.5-Omni 7B and 3B: names, shapes and dtypes, without their weights.

vLLM builds the models of the published config.json on the meta device. tests/data/README.md names the
sources of all facts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn
from vllm.config import LoadConfig
from vllm.model_executor.model_loader import get_model_loader

from omni_stage.errors import ConfigurationError
from omni_stage.fetch.checkpoint import select_weights
from omni_stage.models.qwen2_5_omni.checkpoint import read_checkpoint, read_voices
from omni_stage.models.qwen2_5_omni.token2wav.model import IGNORED_TENSORS
from omni_stage.models.registry import weight_prefixes
from omni_stage.models.shared.talker_feed import THINKER_EMBEDDING, EmbeddingTable
from support.models.meta_models import create_vllm_config, meta_model, one_rank, published_component
from support.models.published import (
    INDEX,
    SIZES,
    VOICES,
    meta_weights,
    published_tensors,
    read_table,
    write_published,
    write_sparse_shards,
)

pytestmark = pytest.mark.engine

STAGES = ("thinker", "talker", "token2wav")
PARAMETERS = {"7b": 10_732_225_408, "3b": 5_537_120_640}
"""As published, without IGNORED_TENSORS: token2wav's rotary table in the shards is a buffer, not a parameter."""
IGNORED_NUMBERS = 32


@dataclass
class Built:
    """A stage's model."""

    size: str
    stage: str
    model: nn.Module


@pytest.fixture(scope="module", params=SIZES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A directory with the published files and sparse shards of zeros."""
    directory = write_published(tmp_path_factory.mktemp("published"), request.param)
    write_sparse_shards(directory, request.param)
    return request.param, directory


@pytest.fixture(scope="module", params=STAGES)
def built(
    request: pytest.FixtureRequest, checkpoint: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Built]:
    (size, directory), stage = checkpoint, request.param
    config = create_vllm_config(stage, directory, published_component(stage, directory))
    with one_rank(tmp_path_factory.mktemp("ranks")), meta_model(config) as model:
        yield Built(size, stage, model)


def test_every_parameter_is_covered_and_nothing_is_left_over(built: Built) -> None:
    parameters = dict(built.model.named_parameters())
    assert built.model.load_weights(meta_weights(built.size)) == parameters.keys()
    expected = read_table(built.size)["modules"][built.stage]["elements"]
    if built.stage == "token2wav":
        expected -= IGNORED_NUMBERS
    assert sum(parameter.numel() for parameter in parameters.values()) == expected
    dtype = torch.float32 if built.stage == "token2wav" else torch.bfloat16
    assert {parameter.dtype for parameter in parameters.values()} == {dtype}


DEFECTS = {
    "thinker": ("thinker.model.layers.3.self_attn.k_proj.bias", "thinker.visual.blocks.2.mlp.up_proj.weight"),
    "talker": ("talker.model.layers.7.mlp.down_proj.weight", "talker.model.embed_tokens.weight"),
    "token2wav": ("token2wav.code2wav_bigvgan_model.conv_post.weight", "token2wav.code2wav_dit_model.proj_out.bias"),
}
"""Two tensors of each stage, which the tests leave out. vLLM's own loading would not report those of the thinker and
talker as missing."""


def test_what_is_missing_is_named(built: Built) -> None:
    gone = DEFECTS[built.stage]
    weights = (item for item in meta_weights(built.size) if item[0] not in gone)
    with pytest.raises(ConfigurationError, match="2 tensors are missing") as caught:
        built.model.load_weights(weights)
    assert all(name in str(caught.value) for name in gone)
    assert caught.value.details.field == "model.path"


def test_another_component_alone_lacks_everything_and_the_error_stays_short(built: Built) -> None:
    weights = (item for item in meta_weights(built.size) if not item[0].startswith(f"{built.stage}."))
    with pytest.raises(ConfigurationError, match=r"tensors are missing: .* and \d+ more") as caught:
        built.model.load_weights(weights)
    assert len(str(caught.value)) < 1024


def test_what_is_unknown_is_named(built: Built) -> None:
    extra = [f"{built.stage}.surplus.weight", DEFECTS[built.stage][0].replace(".weight", ".bias") + "es"]
    added = [(name, torch.empty(3, device="meta")) for name in extra]
    with pytest.raises(ConfigurationError, match="2 tensors are unknown") as caught:
        built.model.load_weights([*meta_weights(built.size), *added])
    assert all(name in str(caught.value) for name in extra)


def test_a_wrong_shape_is_named(built: Built) -> None:
    name = DEFECTS[built.stage][0]
    weights = (
        (other, torch.empty(5, 7, device="meta") if other == name else tensor)
        for other, tensor in meta_weights(built.size)
    )
    with pytest.raises(ConfigurationError, match=r"\[5, 7\]") as caught:
        built.model.load_weights(weights)
    assert name in str(caught.value)


def test_what_is_ignored_is_in_the_checkpoints_and_nowhere_in_the_model() -> None:
    names = {tensor.name for tensor in published_tensors("7b")}
    assert names.issuperset(IGNORED_TENSORS)
    assert IGNORED_TENSORS == ("token2wav.code2wav_dit_model.rotary_embed.inv_freq",)


def test_the_parts_add_up_to_the_published_sizes(checkpoint: tuple[str, Path]) -> None:
    size, directory = checkpoint
    tensors = published_tensors(size)
    assert sum(tensor.elements for tensor in tensors) - IGNORED_NUMBERS == PARAMETERS[size]
    table = read_table(size)
    for shard in table["shards"]:
        assert (directory / shard["file"]).stat().st_size == shard["file_bytes"], "header and data, to the byte"
    total = json.loads((directory / INDEX).read_text())["metadata"]["total_size"]
    assert (total != sum(tensor.nbytes for tensor in tensors)) is (size == "7b"), "7B's index counts too much"


def test_readers_take_the_published_files(checkpoint: tuple[str, Path]) -> None:
    """Our readers accept shards without metadata (7B), an index with a wrong total (7B) and an older config.json."""
    size, directory = checkpoint
    with safe_open(directory / read_table(size)["shards"][0]["file"], "pt") as shard:
        assert shard.metadata() == (None if size == "7b" else {"format": "pt"})
    facts = read_checkpoint(directory)
    assert (facts.dtype, facts.code_limit, facts.max_codes, facts.blocks.codes) == ("bfloat16", 8194, 16384, 12)
    assert facts.codec.stop_ids == (8292, 8294)
    table = EmbeddingTable(directory, THINKER_EMBEDDING, torch.bfloat16)
    assert table.width == facts.hidden_size
    assert table.read(torch.tensor([facts.text_end_id, facts.text_padding_id])).shape == (2, facts.hidden_size)
    assert {name: voice.text_start_id for name, voice in read_voices(directory).items()} == VOICES


def test_fetch_picks_each_components_shards(checkpoint: tuple[str, Path]) -> None:
    size, directory = checkpoint
    index = json.loads((directory / INDEX).read_text())
    shards = {stage: select_weights(index, weight_prefixes(f"qwen2_5_omni/{stage}")) for stage in STAGES}
    numbers = {stage: sorted({int(file.split("-")[1]) for file in names.values()}) for stage, names in shards.items()}
    # The talker also reads the thinker's embedding table, which is in the first shard.
    expected = {
        "7b": {"thinker": [1, 2, 3, 4], "talker": [1, 4, 5], "token2wav": [5]},
        "3b": {"thinker": [1, 2], "talker": [1, 2, 3], "token2wav": [3]},
    }
    assert numbers == expected[size]


def test_vllms_loader_finds_all_tensors(checkpoint: tuple[str, Path]) -> None:
    """vLLM's loader reads every tensor name from the shards. The data, up to 22 GB of zeros, are not read."""
    size, directory = checkpoint
    loader = get_model_loader(LoadConfig(load_format="safetensors"))
    _, files, use_safetensors, _ = loader._prepare_weights(str(directory), None, None, False, None)
    assert use_safetensors
    names = {name for file in files for name in safe_open(file, "pt").keys()}  # noqa: SIM118 - no mapping
    assert names == {tensor.name for tensor in published_tensors(size)}
