"""Voices without an engine: formats, weights refused by name, batches, seeds, and transformers' own VITS."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import VitsModel

from omni_stage.errors import ConfigurationError, ModelExecutionError
from omni_stage.models.voice.checkpoint import read_checkpoint
from omni_stage.models.voice.onnx_file import read_onnx
from omni_stage.models.voice.piper_weights import read_piper
from omni_stage.models.voice.tiny import write_tiny_checkpoint
from omni_stage.models.voice.vits import GRAPH_BATCHES, GRAPH_FRAMES, Speaker, Speech, Utterance, Vits
from omni_stage.models.voice.weights import make_config, read_weights
from support.models.graph_recorder import GraphRecorder
from support.models.piper import write_piper_voice

SHORT = tuple(range(3, 12))
LONG = tuple(range(3, 23)) * 3
SHAPES = ("small", "speakers")


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("voices")
    return {shape: write_tiny_checkpoint(folder / shape, 0, shape) for shape in SHAPES}


def load(folder: Path) -> Speaker:
    config, weights = read_weights(read_checkpoint(folder))
    model = Vits(config)
    model.load_state_dict(dict(weights))
    return Speaker(model, config, use_graphs=False)


def say(
    speaker: Speaker, *ids: tuple[int, ...], who: int = 0, seed: int = 0, noise: float = 0.667
) -> list[torch.Tensor]:
    durations = 0.8 if noise else 0.0
    with torch.inference_mode():
        spoken = speaker.speak([Utterance(item, who, seed, noise, durations, 1.0) for item in ids])
    assert all(
        item.audio.shape[0] == item.frames.sum() * speaker.samples_per_frame
        for item in spoken
        if isinstance(item, Speech)
    )
    return [item.audio for item in spoken if isinstance(item, Speech)]


@pytest.mark.parametrize("shape", SHAPES)
def test_audio_does_not_depend_on_the_rest_of_the_batch(voices: dict[str, Path], shape: str) -> None:
    speaker = load(voices[shape])
    together = say(speaker, SHORT, LONG, SHORT[:4])
    for ids, audio in zip((SHORT, LONG, SHORT[:4]), together, strict=True):
        (alone,) = say(speaker, ids)
        torch.testing.assert_close(audio, alone, atol=1e-4, rtol=0)


def test_seed_decides_the_audio_and_each_speaker_has_another(voices: dict[str, Path]) -> None:
    speaker = load(voices["speakers"])
    (first,), (again,), (other,) = (say(speaker, SHORT, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert first.shape != other.shape or not torch.equal(first, other)
    ada, bo = (say(speaker, SHORT, who=who, noise=0)[0] for who in (0, 1))
    assert ada.shape != bo.shape or not torch.equal(ada, bo)


@pytest.mark.parametrize("shape", SHAPES)
def test_padding_to_a_captured_size_changes_no_audio(voices: dict[str, Path], shape: str) -> None:
    """Longer and larger groups than the captured ones run without a graph."""
    plain, graphed, record = load(voices[shape]), load(voices[shape]), GraphRecorder()
    graphed.use_capture(record)
    with torch.inference_mode():
        assert graphed.warm_up() == len(GRAPH_FRAMES) * len(GRAPH_BATCHES)
    warm = record.replays
    for group, replays in (((SHORT,), 1), ((SHORT, LONG, SHORT[:4]), 1), ((SHORT,) * 5, 0), ((LONG * 40,), 0)):
        before = record.replays
        torch.testing.assert_close(say(graphed, *group), say(plain, *group), atol=1e-4, rtol=0)
        assert record.replays - before == replays
    assert record.replays > warm


@pytest.mark.parametrize("shape", SHAPES)
def test_a_piper_file_gives_the_same_audio_as_transformers_format(
    voices: dict[str, Path], tmp_path: Path, shape: str
) -> None:
    piper = write_piper_voice(tmp_path / "piper", voices[shape])
    (expected,), (audio,) = say(load(voices[shape]), LONG), say(load(piper), LONG)
    torch.testing.assert_close(audio, expected, atol=1e-5, rtol=0)
    assert read_checkpoint(piper).voices == (("tiny",) if shape == "small" else ("ada", "bo", "cy"))


def test_without_noise_the_audio_is_that_of_transformers(voices: dict[str, Path]) -> None:
    config = make_config(read_checkpoint(voices["speakers"]).settings)
    reference = VitsModel(config).eval()
    for module in [*reference.flow.modules()]:
        if torch.nn.utils.parametrize.is_parametrized(module, "weight"):
            torch.nn.utils.parametrize.remove_parametrizations(module, "weight")
    left = reference.load_state_dict(load_file(voices["speakers"] / "model.safetensors"), strict=False)
    assert not left.unexpected_keys
    assert all(
        name.startswith(("posterior_encoder.", "duration_predictor.post_", "duration_predictor.flows.1."))
        for name in left.missing_keys
    )
    reference.noise_scale = reference.noise_scale_duration = 0.0
    with torch.inference_mode():
        expected = reference(input_ids=torch.tensor([SHORT]), speaker_id=1).waveform[0]
    torch.testing.assert_close(say(load(voices["speakers"]), SHORT, who=1, noise=0)[0], expected, atol=1e-5, rtol=0)


def test_normalized_weights_are_folded(voices: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import save_file

    write_tiny_checkpoint(tmp_path, 0, "small")
    weights = load_file(tmp_path / "model.safetensors")
    for name in [name for name in weights if ".wavenet." in name and name.endswith(".weight")]:
        weight = weights.pop(name)
        norm = weight.flatten(1).norm(dim=1)[:, None, None]
        base = name.removesuffix("weight")
        weights[f"{base}parametrizations.weight.original0"] = norm * 2
        weights[f"{base}parametrizations.weight.original1"] = weight / 2
    for name in [name for name in weights if name.endswith("original0")]:
        weights[name] = weights[name] / 2
    weights["posterior_encoder.conv_pre.weight"] = torch.zeros(1)
    save_file(weights, tmp_path / "model.safetensors")
    torch.testing.assert_close(say(load(tmp_path), SHORT), say(load(voices["small"]), SHORT), atol=1e-5, rtol=0)


def test_missing_and_unknown_weights_keep_their_names(voices: dict[str, Path], tmp_path: Path) -> None:
    lacking = read_piper(
        write_piper_voice(tmp_path / "a", voices["small"], leave_out="dec.ups.0.bias") / "xx_XX-tiny-low.onnx"
    )
    assert "decoder.upsampler.0.bias" not in lacking.tensors
    more = read_piper(write_piper_voice(tmp_path / "b", voices["small"], extra="style.weight") / "xx_XX-tiny-low.onnx")
    assert [name for name, _ in more.items() if name == "style.weight"] == ["style.weight"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no graph"),
        (b"<!doctype html>", "cannot read|unknown type|middle"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "too long"),
        (b"\x3a\x7f", "middle of a field"),
    ],
)
def test_a_file_that_is_not_onnx_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "a.onnx"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=words):
        read_onnx(file)


def test_runaway_durations_fail_their_utterance_only(voices: dict[str, Path]) -> None:
    speaker = load(voices["small"])
    with torch.inference_mode():
        fine, broken = speaker.speak([Utterance(SHORT, 0, 0, 0.0, 0.0, 1.0), Utterance(LONG * 4, 0, 0, 0.0, 0.0, 1e6)])
    assert isinstance(fine, Speech)
    assert isinstance(broken, ModelExecutionError)
