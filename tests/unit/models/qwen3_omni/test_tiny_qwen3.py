"""The tiny Qwen3-Omni checkpoint has the published files, names and forms, and transformers loads all its tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer, Qwen3OmniMoeForConditionalGeneration

from omni_stage.errors import ConfigurationError
from omni_stage.models.qwen3_omni.checkpoint import read_checkpoint
from omni_stage.models.qwen3_omni.tiny import SHAPES, TinyShape, write_tiny_checkpoint
from omni_stage.models.qwen3_omni.tiny.shapes import ROLES, SPECIAL_TOKENS
from support.models.published import DATA, QWEN3, published_tensors

FILES = {
    *("chat_template.json", "config.json", "generation_config.json", "merges.txt", "model.safetensors.index.json"),
    *("preprocessor_config.json", "tokenizer_config.json", "vocab.json"),
}
OWN_KEYS = {
    # The published files leave this to transformers' default.
    *("num_position_embeddings",)
}


def read_weights(directory: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, "pt") as shard:
            assert shard.metadata() == {"format": "pt"}
            weights.update({name: shard.get_tensor(name) for name in shard.keys()})  # noqa: SIM118 - no mapping
    return weights


def collapse(names: Iterable[str]) -> set[str]:
    return {re.sub(r"\.\d+(?=\.)", ".N", name) for name in names}


def keys_of(values: dict[str, Any], path: str = "") -> set[str]:
    inner = [keys_of(value, f"{path}{name}.") for name, value in values.items() if isinstance(value, dict)]
    return {f"{path}{name}" for name in values}.union(*inner)


@pytest.mark.parametrize("shape", SHAPES)
def test_files_and_tensors_are_the_published_ones(make_tiny_checkpoint: Callable[..., Path], shape: str) -> None:
    directory = make_tiny_checkpoint(0, shape, "qwen3_omni")
    names = {file.name for file in directory.iterdir()}
    shards = {name for name in names if name.endswith(".safetensors")}
    assert names - shards == FILES, "the published checkpoint has no tokenizer.json"
    assert len(shards) > 1
    weights = read_weights(directory)
    assert collapse(weights) == collapse(tensor.name for tensor in published_tensors(QWEN3))
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in weights.values())
    for name in ("generation_config", "preprocessor_config"):
        ours = json.loads((directory / f"{name}.json").read_text())
        theirs = json.loads((DATA / f"qwen3_omni_30b_a3b.{name}.json").read_text())
        bounds = {"max_pixels": None, "min_pixels": None}
        assert {**ours, **bounds} == {**theirs, **bounds}
    assert sum(file.stat().st_size for file in directory.iterdir()) < 16 << 20


def test_config_has_the_published_form(make_tiny_checkpoint: Callable[..., Path]) -> None:
    published = json.loads((DATA / "qwen3_omni_30b_a3b.config.json").read_text())
    config = json.loads((make_tiny_checkpoint(0, "small", "qwen3_omni") / "config.json").read_text())
    surplus = keys_of(config) - keys_of(published)
    assert {path.rpartition(".")[2] for path in surplus} <= OWN_KEYS
    talker, theirs = config["talker_config"], published["talker_config"]
    assert talker["speaker_id"].keys() == theirs["speaker_id"].keys()
    for name in ("codec_pad_id", "codec_bos_id", "codec_eos_token_id", "codec_nothink_id", "codec_think_eos_id"):
        codes, published_codes = config["code2wav_config"]["codebook_size"], 2048
        assert talker[name] - codes == theirs[name] - published_codes
    assert talker["text_config"]["rope_scaling"].keys() == theirs["text_config"]["rope_scaling"].keys()


def test_transformers_loads_every_tensor(make_tiny_checkpoint: Callable[..., Path]) -> None:
    directory = make_tiny_checkpoint(0, "small", "qwen3_omni")
    model, found = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True
    )
    assert not any(found.values())
    assert torch.equal(
        model.talker.model.layers[1].mlp.experts.gate_up_proj[3].bfloat16(),
        torch.cat(
            [
                read_weights(directory)[f"talker.model.layers.1.mlp.experts.3.{part}_proj.weight"]
                for part in ("gate", "up")
            ]
        ),
    )


def test_roles_are_tokens_and_the_turns_are_framed_as_config_json_says(
    make_tiny_checkpoint: Callable[..., Path],
) -> None:
    directory = make_tiny_checkpoint(0, "small", "qwen3_omni")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert len(tokenizer) == TinyShape().vocab_size
    facts = read_checkpoint(directory)
    newline = tokenizer.encode("\n")
    for role in ROLES:
        ids = tokenizer.encode(f"<|im_start|>{role}\n")
        assert ids[0] == facts.text.message_start
        assert ids[2:] == newline
    assert tokenizer.encode("<|im_start|>user\n")[1] == facts.text.user
    assert tokenizer.encode("<|im_start|>assistant\n")[1] == facts.text.assistant
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS))[-1] == facts.placeholder_ids[0]


def test_equal_seeds_give_equal_weights(tmp_path: Path, make_tiny_checkpoint: Callable[..., Path]) -> None:
    before = torch.random.get_rng_state()
    again = read_weights(write_tiny_checkpoint(tmp_path / "again"))
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator's state must not change"
    first = read_weights(make_tiny_checkpoint(0, "small", "qwen3_omni"))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = read_weights(write_tiny_checkpoint(tmp_path / "other", seed=1))
    assert not torch.equal(first["talker.codec_head.weight"], other["talker.codec_head.weight"])


def test_an_unknown_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown shape"):
        write_tiny_checkpoint(tmp_path, shape="huge")
    with pytest.raises(ConfigurationError, match="vocab_size must be at least"):
        write_tiny_checkpoint(tmp_path, shape=TinyShape(vocab_size=300))
