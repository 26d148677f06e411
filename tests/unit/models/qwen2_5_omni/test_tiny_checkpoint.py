"""The tiny checkpoint has the published form and generates varied text and audible audio.

With the same seed, its weights are the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import Qwen2_5OmniProcessor

from omni_stage.errors import ConfigurationError
from omni_stage.models.qwen2_5_omni.checkpoint import read_checkpoint
from omni_stage.models.qwen2_5_omni.tiny import SHAPES, TinyShape, write_tiny_checkpoint
from omni_stage.models.qwen2_5_omni.tiny.shapes import SPECIAL_TOKENS
from support.models.published import DATA, DTYPES, VOICES, published_tensors
from support.models.reference import ReferencePrompt, ReferenceSettings, load_reference


def read_weights(directory: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, "pt") as shard:
            weights.update({name: shard.get_tensor(name) for name in shard.keys()})  # noqa: SIM118 - no mapping
    return weights


PUBLISHED_FILES = {
    *("chat_template.json", "config.json", "generation_config.json", "model.safetensors.index.json"),
    *("preprocessor_config.json", "spk_dict.pt", "tokenizer.json", "tokenizer_config.json"),
}
OWN_KEYS = {
    # Sizes that the published files leave to transformers' defaults.
    *("block_size", "hidden_size", "look_ahead_layers", "look_backward_layers", "num_attention_heads"),
    *("num_hidden_layers",),
    # The published thinker has these under other names, or leaves them to the defaults.
    *("vision_start_token_id", "pad_token_id"),
}


def collapse(names: Iterable[str]) -> set[str]:
    """Returns the tensors' names, with N in place of the layers' numbers."""
    return {re.sub(r"\.\d+\.", ".N.", re.sub(r"\.\d+\.", ".N.", name)) for name in names}


def keys_of(values: dict[str, Any], path: str = "") -> set[str]:
    """Returns the paths of all keys of a nested mapping."""
    inner = [keys_of(value, f"{path}{name}.") for name, value in values.items() if isinstance(value, dict)]
    return {f"{path}{name}" for name in values}.union(*inner)


def test_files_are_the_published_ones(tiny_checkpoint: Path) -> None:
    names = {file.name for file in tiny_checkpoint.iterdir()}
    shards = {name for name in names if name.endswith(".safetensors")}
    assert names - shards == PUBLISHED_FILES
    assert len(shards) > 1, "several shards, as large checkpoints have"
    index = json.loads((tiny_checkpoint / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == shards
    total = sum(tensor.nbytes for tensor in read_weights(tiny_checkpoint).values())
    assert index["metadata"]["total_size"] != total, "as in the 7B's index, which also counts buffers that no shard has"
    for shard in shards:
        with safe_open(tiny_checkpoint / shard, "pt") as weights:
            assert weights.metadata() is None, "as in the 7B's shards"
    generation_config = json.loads((tiny_checkpoint / "generation_config.json").read_text())
    assert generation_config == json.loads((DATA / "qwen25_omni.generation_config.json").read_text())
    published = json.loads((DATA / "qwen25_omni.preprocessor_config.json").read_text())
    assert json.loads((tiny_checkpoint / "preprocessor_config.json").read_text()).keys() == published.keys()
    assert sum(file.stat().st_size for file in tiny_checkpoint.iterdir()) < 16 << 20


@pytest.mark.parametrize("shape", SHAPES)
def test_tensors_are_the_published_ones(make_tiny_checkpoint: Callable[..., Path], shape: str) -> None:
    ours, published = read_weights(make_tiny_checkpoint(0, shape)), published_tensors("7b")
    assert collapse(ours) == collapse(tensor.name for tensor in published)
    assert {(name.split(".")[0], tensor.dtype) for name, tensor in ours.items()} == {
        (tensor.name.split(".")[0], DTYPES[tensor.dtype]) for tensor in published
    }


def test_config_has_the_published_form(tmp_path: Path, tiny_checkpoint: Path) -> None:
    published = json.loads((DATA / "qwen25_omni_7b.config.json").read_text())
    directory = write_tiny_checkpoint(tmp_path)
    config = json.loads((directory / "config.json").read_text())
    surplus = keys_of(config) - keys_of(published)
    assert {path.rpartition(".")[2] for path in surplus} <= OWN_KEYS
    for part in ((), ("thinker_config",), ("talker_config",)):
        ours, theirs = config, published
        for name in part:
            ours, theirs = ours[name], theirs[name]
        for name in ("architectures", "model_type", "torch_dtype"):
            assert ours[name] == theirs[name]
    named = json.loads((tiny_checkpoint / "config.json").read_text())
    for part in (named, named["thinker_config"], named["talker_config"]):
        assert part.pop("torch_dtype") == "float32"
    for part in (config, config["thinker_config"], config["talker_config"]):
        assert part.pop("torch_dtype") == "bfloat16"
    assert named == config, "the float32 checkpoint's config differs only in torch_dtype"
    assert read_weights(directory).keys() == read_weights(tiny_checkpoint).keys()


def test_speakers_have_the_published_entries(tiny_checkpoint: Path) -> None:
    speakers = torch.load(tiny_checkpoint / "spk_dict.pt", weights_only=True)
    assert list(speakers)[: len(VOICES)] == list(VOICES)
    assert len(speakers) > len(VOICES)
    for entry in speakers.values():
        assert entry.keys() == {"bos_token", "cond", "ref_mel"}
        assert type(entry["bos_token"]) is int
        assert (entry["cond"].dtype, entry["cond"].shape) == (torch.float32, (1, 24))
        assert (entry["ref_mel"].dtype, entry["ref_mel"].shape[::2]) == (torch.float32, (1, 16))


def test_equal_seeds_give_equal_weights(tmp_path: Path, tiny_checkpoint: Path) -> None:
    before = torch.random.get_rng_state()
    again = read_weights(write_tiny_checkpoint(tmp_path / "again", seed=0))
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator's state must not change"
    other = read_weights(write_tiny_checkpoint(tmp_path / "other", seed=1))
    first = read_weights(tiny_checkpoint)
    assert first.keys() == again.keys() == other.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["thinker.lm_head.weight"], other["thinker.lm_head.weight"])


def test_sizes_can_be_chosen(tmp_path: Path) -> None:
    shape = replace(SHAPES["small"], thinker_layers=1, talker_layers=1, vocab_size=600, max_position_embeddings=512)
    shape = replace(shape, block_size=24)
    directory = write_tiny_checkpoint(tmp_path, shape=shape)
    config = json.loads((directory / "config.json").read_text())
    assert config["thinker_config"]["text_config"]["num_hidden_layers"] == 1
    assert config["talker_config"]["max_position_embeddings"] == 512
    assert "block_size" not in config["token2wav_config"]["dit_config"], "left out, as in the published files"
    assert read_checkpoint(directory).blocks.codes == 12
    assert read_weights(directory)["thinker.model.embed_tokens.weight"].shape == (600, 128)


BAD_SHAPES: dict[str, tuple[str | TinyShape, str]] = {
    "unknown name": ("huge", "known: small, gqa"),
    "heads do not share": (replace(SHAPES["small"], thinker_kv_heads=3), "thinker_kv_heads"),
    "talker heads do not share": (replace(SHAPES["small"], talker_kv_heads=0), "talker_kv_heads"),
    "vocabulary too small": (replace(SHAPES["small"], vocab_size=100), "vocab_size"),
}


@pytest.mark.parametrize("case", BAD_SHAPES)
def test_sizes_that_do_not_fit_are_refused(tmp_path: Path, case: str) -> None:
    shape, words = BAD_SHAPES[case]
    with pytest.raises(ConfigurationError, match=words):
        write_tiny_checkpoint(tmp_path / "x", shape=shape)
    assert not (tmp_path / "x").exists()


TEXTS = ["Hello and good morning.", "Grüße, 你好 🙂", "1234567890", "a\n\n  b\t", "<|im_start|>user\nHi<|im_end|>\n"]


@pytest.mark.parametrize("shape", SHAPES)
def test_tokenizer_gives_back_what_it_read(make_tiny_checkpoint: Callable[..., Path], shape: str) -> None:
    processor = Qwen2_5OmniProcessor.from_pretrained(make_tiny_checkpoint(0, shape))
    tokenizer = processor.tokenizer
    assert len(tokenizer) == SHAPES[shape].vocab_size
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert all(len(tokenizer(token)["input_ids"]) == 1 for token in SPECIAL_TOKENS)
    assert len(tokenizer("Tell me what the weather is like.")["input_ids"]) < 16, (
        "the tokenizer must use merges, not single bytes"
    )


def test_chat_template_has_the_real_form(tiny_checkpoint: Path) -> None:
    processor = Qwen2_5OmniProcessor.from_pretrained(tiny_checkpoint)
    content = [{"type": "image"}, {"type": "audio"}, {"type": "text", "text": "What?"}]
    text = processor.tokenizer.apply_chat_template(
        [{"role": "user", "content": content}],
        chat_template=processor.chat_template,
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n<|vision_bos|><|IMAGE|><|vision_eos|><|audio_bos|><|AUDIO|><|audio_eos|>What?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_it_says_something(make_tiny_checkpoint: Callable[..., Path], shape: str) -> None:
    """The tiny checkpoint generates varied, printable text, varied codes, and audio that is audible and not clipped."""
    reference = load_reference(make_tiny_checkpoint(0, shape))
    result = reference.run(
        ReferencePrompt("Tell me what the weather is like."), ReferenceSettings(thinker_tokens=24, talker_tokens=48)
    )
    assert len(set(result.thinker_token_ids)) > 12
    assert result.text.isascii()
    assert result.text.isprintable()
    assert len(set(result.codes)) > 10
    assert 0.1 < result.waveform.abs().max() < 1.0
    assert result.waveform.square().mean().sqrt() > 0.02
    assert abs(result.waveform.mean()) < 1e-3
