"""What is read from config.json: the published Instruct checkpoint's values, and the errors for malformed files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_proto.stage_config import StageConfig
from omni_stage.errors import ConfigurationError
from omni_stage.models.qwen3_omni.checkpoint import (
    SpeechFacts,
    count_lookahead,
    read_checkpoint,
    read_speaking_checkpoint,
)
from omni_stage.models.qwen3_omni.schemas import find_pace
from omni_stage.models.qwen3_omni.thinker.component import samples_per_token
from omni_stage.models.shared.talker_feed import repeat_limit
from support.models.published import write_published_qwen3


def test_the_published_configuration(tmp_path: Path) -> None:
    checkpoint, speech = read_speaking_checkpoint(write_published_qwen3(tmp_path))
    assert (checkpoint.dtype, checkpoint.hidden_size, checkpoint.vocab_size) == ("bfloat16", 2048, 152_064)
    assert checkpoint.placeholder_ids == (151_675, 151_655, 151_656)
    text = checkpoint.text
    assert (text.message_start, text.message_end, text.user, text.assistant) == (151_644, 151_645, 872, 77_091)
    assert (text.speech_start, text.speech_end, text.speech_padding) == (151_672, 151_673, 151_671)
    codec = speech.codec
    assert (codec.padding, codec.start, codec.end) == (2148, 2149, 2150)
    assert (codec.no_think, codec.think_start, codec.think_end) == (2155, 2156, 2157)
    assert list(codec.speakers.items()) == [("ethan", 2302), ("chelsie", 2301), ("aiden", 2303)]
    assert codec.never_sampled == range(2048, 3072)
    assert codec.end in codec.never_sampled, "the range includes the end token, although it is sampled"
    assert not codec.special_ids.intersection(codec.placeholders)
    assert all(token in codec.never_sampled for token in codec.placeholders)
    assert (speech.groups, speech.codebook_size, speech.accept_hidden_layer) == (16, 2048, 24)
    assert (speech.frame_samples, speech.lookahead_samples, speech.max_frames) == (1920, 555, 8000)
    assert speech.talker_positions == 65_536


@pytest.mark.parametrize(("rates", "samples"), [((8, 5, 4, 3), 555), ((3,), 3), ((2, 2), 6)])
def test_samples_that_need_a_further_frame(rates: tuple[int, ...], samples: int) -> None:
    """count_lookahead returns how many samples the audio lacks at its end, because they need one more frame."""
    assert count_lookahead(rates) == samples


@pytest.fixture
def edit(tmp_path: Path, make_tiny_checkpoint: Callable[..., Path]) -> Callable[[Callable[[Any], object]], Path]:
    """Returns edit(change), which writes the changed tiny config.json to a directory and returns that directory."""
    config = json.loads((make_tiny_checkpoint(0, "small", "qwen3_omni") / "config.json").read_text())

    def write(change: Callable[[Any], object]) -> Path:
        change(config)
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return write


def test_a_checkpoint_that_only_writes_has_no_talker_to_read(edit: Callable[..., Path]) -> None:
    def change(config: Any) -> None:
        config["enable_audio_output"] = False
        del config["talker_config"], config["code2wav_config"]

    directory = edit(change)
    assert read_checkpoint(directory).speech is None
    with pytest.raises(ConfigurationError, match="only writes"):
        read_speaking_checkpoint(directory)


def test_no_number_of_the_published_checkpoint_stands_where_the_file_has_one(edit: Callable[..., Path]) -> None:
    """Every number that a component uses follows config.json."""

    def change(config: Any) -> None:
        config["code2wav_config"] |= {"upsample_rates": [4, 3], "upsampling_ratios": [5], "num_quantizers": 3}
        config["code2wav_config"] |= {"codebook_size": 20, "max_position_embeddings": 99}
        config["talker_config"] |= {"num_code_groups": 3, "codec_eos_token_id": 31, "speaker_id": {"Ada": 7, "bo": 8}}
        predictor(config).update(num_code_groups=3, vocab_size=20)
        config["thinker_config"]["audio_config"] |= {"n_window": 25}

    directory = edit(change)
    checkpoint, speech = read_speaking_checkpoint(directory)
    assert (speech.frame_samples, speech.lookahead_samples, speech.max_frames) == (60, 15, 99)
    assert (speech.groups, speech.codebook_size, speech.codec.end) == (3, 20, 31)
    assert (speech.voices, dict(speech.codec.speakers)) == (("Ada", "Bo"), {"ada": 7, "bo": 8})
    assert (checkpoint.audio_frames, samples_per_token(checkpoint.audio_frames, 80)) == (50, 50 * 80 // 7 + 1)
    fields = {"pipeline": "p", "stage": "t", "component": "qwen3_omni/talker", "model": {"path": str(directory)}}
    pace = find_pace(speech, StageConfig.model_validate(fields))
    assert (pace["tokens_per_second"], pace["first_tokens"], repeat_limit(pace)) == (400, 1, 4000)
    assert codec_facts(speech) == (range(20, 1088), 1088)


def codec_facts(speech: SpeechFacts) -> tuple[range, int]:
    """Returns the talker's ids without audio, and how many ids it has."""
    return speech.codec.never_sampled, speech.codec.vocab_size


@pytest.mark.parametrize(("rates", "ratios", "frames"), [([8, 5, 4, 3], [2, 2], 1), ([4, 3], [], 2), ([1, 1], [1], 3)])
def test_the_first_audio_needs_more_frames_if_the_lookahead_is_longer_than_one(
    edit: Callable[..., Path], rates: list[int], ratios: list[int], frames: int
) -> None:
    directory = edit(lambda config: config["code2wav_config"].update(upsample_rates=rates, upsampling_ratios=ratios))
    _, speech = read_speaking_checkpoint(directory)
    assert speech.first_frames == frames
    samples = speech.first_frames * speech.frame_samples - speech.lookahead_samples
    assert 0 < samples <= speech.frame_samples


def predictor(config: Any) -> Any:
    return config["talker_config"]["code_predictor_config"]


def set_groups(config: Any, groups: int) -> None:
    """Changes the number of codes in a frame in all three parts."""
    config["talker_config"]["num_code_groups"] = predictor(config)["num_code_groups"] = groups
    config["code2wav_config"]["num_quantizers"] = groups


DEFECTS: dict[str, Callable[[Any], object]] = {
    "its model_type is not qwen3_omni_moe": lambda config: config.update(model_type="qwen2_5_omni"),
    "a thinker that was saved by itself": lambda config: config.update(model_type="qwen3_omni_moe_thinker"),
    "talker_config is missing": lambda config: config.pop("talker_config"),
    "code_predictor_config is missing": lambda config: config["talker_config"].pop("code_predictor_config"),
    "must equal the thinker's": lambda config: config["talker_config"].update(thinker_hidden_size=7),
    "must be equal": lambda config: config["code2wav_config"].update(num_quantizers=9),
    "names no speaker": lambda config: config["talker_config"].update(speaker_id={}),
    "is not a layer of the thinker": lambda config: config["talker_config"].update(accept_hidden_layer=99),
    "codebook_size leaves 0 unused ids": lambda config: (
        config["code2wav_config"].update(codebook_size=1087),
        config["talker_config"].update(codec_eos_token_id=1087),
    ),
    "is an audio code": lambda config: config["code2wav_config"].update(codebook_size=200),
    "vocab_size must be at most 48": lambda config: config["code2wav_config"].update(codebook_size=48),
    "the token id 2000, which is not in the talker": lambda config: config["talker_config"].update(codec_bos_id=2000),
    "the token id 640, which is not in the thinker": lambda config: config.update(tts_pad_token_id=640),
    "must be at least 2": lambda config: set_groups(config, 1),
    "must equal the talker's hidden_size": lambda config: predictor(config).update(hidden_size=64),
    "only full_attention": lambda config: predictor(config).update(layer_types=["sliding_attention"] * 2),
    "must be above 1, the number of layers": lambda config: config["talker_config"].update(accept_hidden_layer=1),
    "vocab_size": lambda config: config["thinker_config"]["text_config"].update(vocab_size="many"),
}


@pytest.mark.parametrize("problem", DEFECTS)
def test_a_malformed_configuration_is_refused_by_name(edit: Callable[..., Path], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        read_checkpoint(edit(DEFECTS[problem]))
    assert caught.value.details.field == "model.path"
