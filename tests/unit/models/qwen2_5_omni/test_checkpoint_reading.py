"""What the components read from a checkpoint, and the errors for a checkpoint that is wrong."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2_5OmniConfig

from omni_proto.stage_config import StageConfig
from omni_stage.errors import ConfigurationError
from omni_stage.models.qwen2_5_omni.checkpoint import AudioShape, Blocks, CodecTokens, read_checkpoint, read_voices
from omni_stage.models.qwen2_5_omni.model_configs import name_thinker
from omni_stage.models.qwen2_5_omni.schemas import find_pace
from support.models.published import VOICES, write_published


def edit(source: Path, target: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    config = json.loads((source / "config.json").read_text())
    change(config)
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize(("size", "hidden_size", "vocab_size"), [("7b", 3584, 152064), ("3b", 2048, 151936)])
def test_facts_of_the_published_models(tmp_path: Path, size: str, hidden_size: int, vocab_size: int) -> None:
    """The published config.json lacks the DiT's block size and longest input, so transformers' defaults apply."""
    checkpoint = read_checkpoint(write_published(tmp_path, size))
    assert (checkpoint.hidden_size, checkpoint.vocab_size, checkpoint.dtype) == (hidden_size, vocab_size, "bfloat16")
    codec = checkpoint.codec
    assert (codec.padding, codec.start, codec.end, codec.mask) == (8292, 8293, 8294, 8296)
    assert codec.stop_ids == (8292, 8294)
    assert checkpoint.placeholder_ids == (151646, 151655, 151656)
    assert (checkpoint.text_end_id, checkpoint.text_padding_id) == (151861, 151859)
    assert (checkpoint.code_limit, checkpoint.max_codes, checkpoint.blocks.codes) == (8194, 16384, 12)
    assert checkpoint.talker_positions == 32768
    assert {name: voice.text_start_id for name, voice in read_voices(tmp_path).items()} == VOICES


def test_what_a_file_leaves_out_has_transformers_default(tiny_checkpoint: Path, tmp_path: Path) -> None:
    def strip(config: dict[str, Any]) -> None:
        for name in ("repeats", "num_embeds", "block_size"):
            config["token2wav_config"]["dit_config"].pop(name)
        for name in ("tts_codec_pad_token_id", "tts_text_end_token_id", "max_position_embeddings"):
            config["talker_config"].pop(name)
        config["thinker_config"].pop("audio_token_index")
        # transformers' own ids are those of the published vocabularies.
        config["thinker_config"]["text_config"]["vocab_size"] = 152_064
        config["talker_config"]["vocab_size"] = 8448

    checkpoint = read_checkpoint(edit(tiny_checkpoint, tmp_path, strip))
    assert (checkpoint.code_limit, checkpoint.blocks.codes, checkpoint.max_codes) == (8194, 12, 16384)
    assert (checkpoint.codec.padding, checkpoint.text_end_id, checkpoint.talker_positions) == (8292, 151861, 32768)
    assert checkpoint.placeholder_ids[0] == 151646


def test_default_voice_comes_first(tiny_checkpoint: Path) -> None:
    voices = read_voices(tiny_checkpoint)
    assert list(voices) == ["Chelsie", "Ethan", "Aiden"]
    assert len({voice.text_start_id for voice in voices.values()}) == 3
    assert voices["Chelsie"].reference_mel.dtype is torch.float32


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another model": (lambda config: config.pop("talker_config"), "not a Qwen2.5-Omni configuration"),
    "another type": (lambda config: config.update(model_type="qwen2"), "model_type is not qwen2_5_omni"),
    "a thinker alone": (
        lambda config: config.update(model_type="qwen2_5_omni_thinker"),
        "a thinker that was saved by itself; put it back into the Qwen2.5-Omni model",
    ),
    "a part of a part is gone": (
        lambda config: config["token2wav_config"].pop("dit_config"),
        r"token2wav_config\.dit_config is missing",
    ),
    "a number is a word": (
        lambda config: config["talker_config"].update(tts_codec_pad_token_id="many"),
        "'tts_codec_pad_token_id' expected int",
    ),
    "nothing repeats": (lambda config: config["token2wav_config"]["dit_config"].update(repeats=0), "repeats"),
    "sizes differ": (lambda config: config["talker_config"].update(embedding_size=5), "must equal the thinker's"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_configuration(tiny_checkpoint: Path, tmp_path: Path, case: str) -> None:
    change, words = BROKEN[case]
    with pytest.raises(ConfigurationError, match=words) as caught:
        read_checkpoint(edit(tiny_checkpoint, tmp_path, change))
    assert caught.value.details.field == "model.path"


def test_dtype_is_looked_for_in_the_parts(tiny_checkpoint: Path, tmp_path: Path) -> None:
    def move(config: dict[str, Any]) -> None:
        config.pop("torch_dtype")
        config["thinker_config"]["torch_dtype"] = "float16"

    assert read_checkpoint(edit(tiny_checkpoint, tmp_path, move)).dtype == "float16"


@pytest.mark.parametrize("content", [None, b"not json", b"[]"], ids=["missing", "not json", "a list"])
def test_unreadable_configuration(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        read_checkpoint(tmp_path)


class Runs:
    """An object whose pickle runs code when it is loaded without weights_only."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("pwned"),))


def test_voices_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for protocol_file in ("zip", "plain"):
        if protocol_file == "zip":
            torch.save({"Eve": Runs()}, tmp_path / "spk_dict.pt")
        else:
            (tmp_path / "spk_dict.pt").write_bytes(pickle.dumps({"Eve": Runs()}, protocol=2))
        with pytest.raises(ConfigurationError, match="does not hold voices"):
            read_voices(tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("content", [{}, {"Eve": {"bos_token": 1}}], ids=["none", "without tensors"])
def test_malformed_voices(tmp_path: Path, content: dict[str, Any]) -> None:
    torch.save(content, tmp_path / "spk_dict.pt")
    with pytest.raises(ConfigurationError):
        read_voices(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"spk_dict\.pt"):
        read_voices(tmp_path)


def test_no_number_of_the_published_checkpoint_stands_where_the_file_has_one(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Every number that a component uses follows config.json."""
    talker = {"tts_codec_pad_token_id": 61, "tts_codec_start_token_id": 62, "tts_codec_end_token_id": 63}
    talker |= {"tts_codec_mask_token_id": 64, "tts_text_end_token_id": 65, "tts_text_pad_token_id": 66}

    def change(config: dict[str, Any]) -> None:
        config["talker_config"] |= {**talker, "max_position_embeddings": 777}
        config["thinker_config"] |= {"position_id_per_seconds": 20, "seconds_per_chunk": 3}
        config["token2wav_config"]["dit_config"] |= {
            "repeats": 3,
            "block_size": 15,
            "num_embeds": 99,
            "max_position_embeddings": 3000,
            "num_hidden_layers": 4,
            "look_ahead_layers": [0, 2, 9],
            "look_backward_layers": [1, 2, 3],
        }
        config["token2wav_config"]["bigvgan_config"] |= {"upsample_rates": [4, 3], "upsample_kernel_sizes": [8, 5]}

    facts = read_checkpoint(edit(tiny_checkpoint, tmp_path, change))
    assert facts.codec == CodecTokens(padding=61, start=62, end=63, mask=64)
    assert (facts.text_end_id, facts.text_padding_id, facts.talker_positions) == (65, 66, 777)
    assert (facts.code_limit, facts.max_codes) == (100, 1000)
    assert facts.blocks == Blocks(codes=5, back=3, ahead=2)
    assert facts.audio == AudioShape(frame=12, repeats=3)
    fields = {"pipeline": "p", "stage": "talker", "component": "qwen2_5_omni/talker", "model": {"path": str(tmp_path)}}
    pace = find_pace(facts, StageConfig.model_validate(fields))
    assert (pace["tokens_per_second"], pace["first_tokens"]) == (24_000 / 36, (1 + 2) * 5)
    config = name_thinker(Qwen2_5OmniConfig.from_pretrained(tmp_path))
    assert config.thinker_config.vision_config.tokens_per_second == 20
