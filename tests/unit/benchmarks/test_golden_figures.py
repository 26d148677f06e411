"""The published outputs of the 7B model, and the verdicts on answers that are compared with them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from benchmarks.gpu.released.golden import (
    Verdict,
    find_missing_media,
    golden_audio,
    golden_text,
    judge_audio,
    judge_text,
)

from omni_stage.models.qwen2_5_omni.tiny.shapes import CHAT_TEMPLATE

AUDIO, TEXT = golden_audio(), golden_text()


def golden_like(scale: float = 1.0) -> list[float]:
    """Returns audio with the length and the listed samples of the fixture, and with `scale` times its loudness."""
    samples = [0.0] * AUDIO.samples
    first = AUDIO.samples // AUDIO.stride - len(AUDIO.last_strided)
    for index, value in enumerate(AUDIO.last_strided):
        samples[(first + index) * AUDIO.stride] = value
    energy = AUDIO.samples * (scale * AUDIO.rms) ** 2 - sum(value * value for value in AUDIO.last_strided)
    quiet = [index for index in range(AUDIO.samples // 2) if index % AUDIO.stride]
    for index in quiet:
        samples[index] = math.sqrt(energy / len(quiet))
    return samples


def test_figures_agree_with_one_another() -> None:
    assert (len(AUDIO.codes), AUDIO.codes.count(5194)) == (119, 108)
    assert AUDIO.samples == 480 * len(AUDIO.codes)
    assert AUDIO.samples % AUDIO.stride == 0
    assert max(AUDIO.codes) < 8194, "token2wav has no embedding for such a code"
    assert f"<|im_start|>system\\n{TEXT.system}<|im_end|>" in CHAT_TEMPLATE, "the template's own system message"


def test_the_same_audio_passes() -> None:
    finding = judge_audio(golden_like(), AUDIO)
    assert finding.verdict is Verdict.PASS, finding


def test_other_noise_is_neither_a_pass_nor_a_defect() -> None:
    """Audio of the right length and about the right loudness, with other samples, is OTHER_NOISE."""
    assert judge_audio(golden_like(1.05), AUDIO).verdict is Verdict.OTHER_NOISE
    assert judge_audio([-sample for sample in golden_like()], AUDIO).verdict is Verdict.OTHER_NOISE


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param([], id="nothing"),
        pytest.param(golden_like()[:-480], id="a code is missing"),
        pytest.param([0.0] * AUDIO.samples, id="silence"),
        pytest.param(golden_like(1 / math.sqrt(3.6)), id="the energy of wrong rotary embeddings"),
        pytest.param([*golden_like()[:-1], math.nan], id="no number"),
    ],
)
def test_defects_fail(samples: list[float]) -> None:
    assert judge_audio(samples, AUDIO).verdict is Verdict.FAIL


@pytest.mark.parametrize("answer", TEXT.answers)
def test_published_answers_pass(answer: str) -> None:
    assert judge_text(answer, TEXT).verdict is Verdict.PASS
    assert judge_text(f" {answer}\n", TEXT).verdict is Verdict.PASS


@pytest.mark.parametrize("answer", ["", "The sound is glass", "The dog is a poodle."])
def test_other_answers_fail(answer: str) -> None:
    assert judge_text(answer, TEXT).verdict is Verdict.FAIL


def test_missing_media_are_named(tmp_path: Path) -> None:
    audio, image = tmp_path / "glass.mp3", tmp_path / "dog.jpg"
    reason = find_missing_media(None, image, TEXT)
    assert reason is not None
    assert TEXT.audio_url in reason
    assert TEXT.image_url in reason
    audio.touch()
    image.touch()
    assert find_missing_media(audio, image, TEXT) is None
