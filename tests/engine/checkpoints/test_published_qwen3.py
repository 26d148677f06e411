"""Our model classes load the tensors of Qwen3-Omni-30B-A3B-Instruct: names, shapes and dtypes, without its weights.

vLLM builds the models of the published config.json on the meta device. tests/data/README.md names the
sources of all facts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from omni_stage.errors import ConfigurationError
from omni_stage.models.qwen3_omni.checkpoint import read_checkpoint
from omni_stage.models.qwen3_omni.thinker.component import DEFAULT_SAMPLING, MAX_SAMPLES, Thinker
from omni_stage.models.shared.media_cost import MediaCosts
from omni_stage.models.shared.prompts import PromptBuilder
from omni_stage.models.shared.thinker import ThinkerSettings
from support.models.meta_models import create_vllm_config, meta_model, one_rank, published_component
from support.models.published import (
    QWEN3,
    meta_weights,
    published_tensors,
    read_table,
    write_published_qwen3,
    write_sparse_shards,
)

pytestmark = pytest.mark.engine

STAGES = ("code2wav", "talker", "thinker")
PARAMETERS = 35_259_818_545
TENSORS = 28_010
DEFECTS = {
    "thinker": ("thinker.model.layers.40.mlp.experts.127.down_proj.weight", "thinker.visual.merger_list.2.mlp.2.bias"),
    "talker": (
        "talker.model.layers.7.mlp.experts.93.up_proj.weight",
        "talker.code_predictor.model.codec_embedding.14.weight",
    ),
    "code2wav": ("code2wav.decoder.2.block.3.act1.beta", "code2wav.pre_transformer.layers.5.mlp_layer_scale.scale"),
}
"""Two tensors of each stage, which the tests leave out."""


@dataclass
class Built:
    """A stage's model."""

    stage: str
    model: nn.Module


class MediaTokens:
    """A tokenizer with only the media tokens: all that PromptBuilder needs. The published tokenizer is not stored."""

    chat_template = ""
    eos_token_id = 151_645

    def convert_ids_to_tokens(self, token_id: int) -> str:
        """Returns the published name of a media token."""
        return {151_675: "<|audio_pad|>", 151_655: "<|image_pad|>", 151_656: "<|video_pad|>"}[token_id]


def thinker_of(checkpoint: Path) -> Thinker:
    """Returns the thinker's component, without a tokenizer."""
    facts = read_checkpoint(checkpoint)
    settings = ThinkerSettings(
        feeds=True,
        max_media=4,
        default_sampling=DEFAULT_SAMPLING,
        end_token_ids=(facts.text.message_end,),
        media_costs=MediaCosts(4 << 10, 64 << 10, MAX_SAMPLES, 32, 1231, pads_to_limit=False),
        pace={"tokens_per_second": 12.5},
    )
    prompts = PromptBuilder(MediaTokens(), facts, max_audio_samples=MAX_SAMPLES, speech_needs_chat=True)
    return Thinker(facts, prompts, settings)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the published files and sparse shards of zeros."""
    directory = write_published_qwen3(tmp_path_factory.mktemp("published"))
    write_sparse_shards(directory, QWEN3)
    return directory


@pytest.fixture(scope="module", params=STAGES)
def built(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Built]:
    component = (
        thinker_of(checkpoint)
        if request.param == "thinker"
        else published_component(request.param, checkpoint, "qwen3_omni")
    )
    config = create_vllm_config(request.param, checkpoint, component)
    with one_rank(tmp_path_factory.mktemp("ranks")), meta_model(config) as model:
        yield Built(request.param, model)


def test_every_parameter_is_covered_and_nothing_is_left_over(built: Built) -> None:
    parameters = dict(built.model.named_parameters())
    assert built.model.load_weights(meta_weights(QWEN3)) == parameters.keys()
    expected = read_table(QWEN3)["modules"][built.stage]["elements"]
    assert sum(parameter.numel() for parameter in parameters.values()) == expected
    dtype = torch.float32 if built.stage == "code2wav" else torch.bfloat16
    assert {parameter.dtype for parameter in parameters.values()} == {dtype}


def test_what_is_missing_is_named(built: Built) -> None:
    gone = DEFECTS[built.stage]
    weights = (item for item in meta_weights(QWEN3) if item[0] not in gone)
    with pytest.raises(ConfigurationError, match="2 tensors are missing") as caught:
        built.model.load_weights(weights)
    assert all(name in str(caught.value) for name in gone)


def test_the_parts_add_up_to_the_published_numbers() -> None:
    tensors, table = published_tensors(QWEN3), read_table(QWEN3)
    assert len(tensors) == TENSORS == sum(shard["tensors"] for shard in table["shards"])
    assert sum(tensor.elements for tensor in tensors) == PARAMETERS
    assert sum(tensor.nbytes for tensor in tensors) == table["index_total_size"]
    assert sum(shard["data_bytes"] for shard in table["shards"]) == table["index_total_size"]
