"""The tiny checkpoint is complete, seeded, and neither mute nor constant."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import Qwen2_5OmniProcessor

from omni_stage.errors import ConfigurationError
from omni_stage.models.qwen2_5_omni.tiny import SHAPES, TinyShape, write_tiny_checkpoint
from omni_stage.models.qwen2_5_omni.tiny.vocabulary import SPECIAL_TOKENS
from support.reference import ReferencePrompt, ReferenceSettings, load_reference


def read_weights(directory: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, "pt") as shard:
            weights.update({name: shard.get_tensor(name) for name in shard.keys()})  # noqa: SIM118 - no mapping
    return weights


def test_layout_is_the_real_one(tiny_checkpoint: Path) -> None:
    names = {file.name for file in tiny_checkpoint.iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json", "spk_dict.pt"} <= names
    index = json.loads((tiny_checkpoint / "model.safetensors.index.json").read_text())
    assert {name.split(".")[0] for name in index["weight_map"]} == {"thinker", "talker", "token2wav"}
    assert len(set(index["weight_map"].values())) > 1, "several shards, as large checkpoints have"
    assert sum(file.stat().st_size for file in tiny_checkpoint.iterdir()) < 16 << 20


def test_equal_seeds_give_equal_weights(tmp_path: Path, tiny_checkpoint: Path) -> None:
    before = torch.random.get_rng_state()
    again = read_weights(write_tiny_checkpoint(tmp_path / "again", seed=0))
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator stays as it was"
    other = read_weights(write_tiny_checkpoint(tmp_path / "other", seed=1))
    first = read_weights(tiny_checkpoint)
    assert first.keys() == again.keys() == other.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["thinker.lm_head.weight"], other["thinker.lm_head.weight"])


def test_sizes_can_be_chosen(tmp_path: Path) -> None:
    shape = replace(SHAPES["small"], thinker_layers=1, talker_layers=1, vocab_size=600, max_position_embeddings=512)
    directory = write_tiny_checkpoint(tmp_path, shape=shape)
    config = json.loads((directory / "config.json").read_text())
    assert config["thinker_config"]["text_config"]["num_hidden_layers"] == 1
    assert config["talker_config"]["max_position_embeddings"] == 512
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
    assert len(tokenizer("Tell me what the weather is like.")["input_ids"]) < 16, "merges, not bytes"


def test_chat_template_has_the_real_form(tiny_checkpoint: Path) -> None:
    tokenizer = Qwen2_5OmniProcessor.from_pretrained(tiny_checkpoint).tokenizer
    content = [{"type": "image"}, {"type": "audio"}, {"type": "text", "text": "What?"}]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n<|vision_bos|><|IMAGE|><|vision_eos|><|audio_bos|><|AUDIO|><|audio_eos|>What?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_it_says_something(make_tiny_checkpoint: Callable[..., Path], shape: str) -> None:
    """Varied text of printable words, varied codes, sound that can be heard and is not clipped."""
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
