"""Every number of a voice's files may differ from the published ones: the voice speaks as transformers' VITS of the
same numbers, or is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrize
from transformers import VitsModel, VitsTokenizer

from omni_stage.errors import ConfigurationError, ModelExecutionError
from omni_stage.models.voice.checkpoint import open_reader, read_checkpoint
from omni_stage.models.voice.tiny import _config, write_tiny_checkpoint
from omni_stage.models.voice.vits import MAX_ID_S, Speaker, Speech, Utterance, Vits
from omni_stage.models.voice.weights import make_config, read_weights
from support.models.piper import write_piper_voice
from support.tables import each_row

TINY = _config({})
IDS = tuple(range(3, 12))
SERVED: dict[str, dict[str, Any]] = {
    "hidden size": {"hidden_size": 48, "num_attention_heads": 4},
    "layers": {"num_hidden_layers": 1},
    "window": {"window_size": 2},
    "no bias": {"use_bias": False},
    "feed forward": {"ffn_dim": 40, "ffn_kernel_size": 5},
    "even feed forward": {"ffn_kernel_size": 2},
    "flow": {"flow_size": 20},
    "activation": {"hidden_act": "gelu"},
    "norms": {"layer_norm_eps": 0.1},
    "plain durations": {"use_stochastic_duration_prediction": False, "duration_predictor_filter_channels": 24},
    "kernel of durations": {"duration_predictor_kernel_size": 5, "depth_separable_num_layers": 1},
    "bins of durations": {"duration_predictor_flow_bins": 6, "duration_predictor_tail_bound": 2.0},
    "one flow of durations": {"duration_predictor_num_flows": 1},
    "flows": {"prior_encoder_num_flows": 3, "prior_encoder_num_wavenet_layers": 1},
    "wavenet": {"wavenet_kernel_size": 3, "wavenet_dilation_rate": 2},
    "speakers": {"num_speakers": 5, "speaker_embedding_size": 12},
    "the embedding of one speaker": {"speaker_embedding_size": 12},
    "three upsamplers": {"upsample_rates": [4, 2, 2], "upsample_kernel_sizes": [8, 4, 4]},
    "odd rates": {"upsample_rates": [5, 3], "upsample_kernel_sizes": [11, 3], "upsample_initial_channel": 24},
    "blocks": {"resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]]},
    "slope": {"leaky_relu_slope": 0.3},
    "what only training reads": {"spectrogram_bins": 33, "posterior_encoder_num_wavenet_layers": 3, "layerdrop": 0.5},
    "rate": {"sampling_rate": 44_100},
}
REFUSED: dict[str, dict[str, Any]] = {
    "hidden_size is 32, which 3 does not divide": {"num_attention_heads": 3},
    "window_size is 0": {"window_size": 0},
    "flow_size is 15": {"flow_size": 15},
    "hidden_act is 'wave'": {"hidden_act": "wave"},
    "wavenet_kernel_size is 4": {"wavenet_kernel_size": 4},
    "duration_predictor_kernel_size is 2": {"duration_predictor_kernel_size": 2},
    "depth_separable_channels is 4": {"depth_separable_channels": 4},
    "duration_predictor_num_flows is 0": {"duration_predictor_num_flows": 0},
    "num_speakers is 2, but speaker_embedding_size is 0": {"num_speakers": 2},
    "pad_token_id is 99": {"pad_token_id": 99},
    "upsample_kernel_size of 9 for a rate of 8": {"upsample_kernel_sizes": [9, 8]},
    "upsample_kernel_size of 4 for a rate of 8": {"upsample_kernel_sizes": [4, 8]},
    "upsample_rates": {"upsample_rates": [8]},
    "upsample_initial_channel is 3": {"upsample_initial_channel": 3},
    "resblock_kernel_sizes .* do not fit": {"resblock_kernel_sizes": [3, 5, 7]},
    "resblock_kernel_sizes .* must be odd": {"resblock_kernel_sizes": [3, 4], "resblock_dilation_sizes": [[1], [1]]},
    "num_hidden_layers is 0": {"num_hidden_layers": 0},
    "hidden_size": {"hidden_size": "32"},
}


def fill(model: Vits) -> None:
    """Draws weights of a size that gives audible noise, and durations of a few frames."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "norm" not in name:
                fan = parameter[0].numel() if parameter.dim() > 1 else 1
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / (2 * fan**0.5))
            if name == "duration_predictor.flows.0.translate":
                parameter.fill_(-2.0)


@each_row("name", SERVED)
def test_a_number_that_differs_gives_the_audio_of_transformers(name: str) -> None:
    config = make_config(TINY | SERVED[name])
    model = Vits(config).float().eval()
    fill(model)
    reference = VitsModel(config).eval()
    for module in reference.flow.modules():
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight")
    assert not reference.load_state_dict(model.state_dict(), strict=False).unexpected_keys
    reference.noise_scale = reference.noise_scale_duration = 0.0
    speaker = config.num_speakers - 1
    with torch.inference_mode():
        expected = reference(input_ids=torch.tensor([IDS]), speaker_id=speaker or None).waveform[0]
        (audio,) = Speaker(model, config, use_graphs=False).speak([Utterance(IDS, speaker, 0, 0.0, 0.0, 1.0)])
    assert isinstance(audio, Speech)
    torch.testing.assert_close(audio.audio, expected, atol=1e-5, rtol=0)


@each_row("problem", REFUSED)
def test_a_number_that_no_voice_can_have_is_refused_by_name(problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        make_config(TINY | REFUSED[problem])
    assert caught.value.details.field == "model.path"


@pytest.mark.parametrize(("rates", "hz"), [([8, 4], 8_000), ([8, 8, 4], 16_000), ([4, 2], 16_000)])
def test_bounds_of_durations_are_seconds_whatever_a_frame_is(rates: list[int], hz: int) -> None:
    kernels = [2 * rate for rate in rates]
    config = make_config(TINY | {"upsample_rates": rates, "upsample_kernel_sizes": kernels, "sampling_rate": hz})
    model = Vits(config).float().eval()
    fill(model)
    with torch.inference_mode():
        model.get_parameter("duration_predictor.flows.0.translate").fill_(-50.0)  # durations without end
        speaker = Speaker(model, config, use_graphs=False)
        own, slow = speaker.speak([Utterance(IDS[:2], 0, 0, 0.0, 0.0, length) for length in (1.0, 2.0)])
        (endless,) = speaker.speak([Utterance(IDS * 20, 0, 0, 0.0, 0.0, 1.0)])
    assert isinstance(own, Speech)
    assert isinstance(slow, Speech)
    assert own.audio.numel() / hz == pytest.approx(2 * MAX_ID_S, rel=0.02)
    assert slow.audio.numel() / hz == pytest.approx(4 * MAX_ID_S, rel=0.02)
    assert isinstance(endless, ModelExecutionError)


FILES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a slow voice": ({"speaking_rate": 0.0}, {}, "speaking_rate is 0, but must be from 0.05"),
    "an id that the embedding lacks": ({"vocab_size": 20}, {}, "vocab_size of config.json is 20"),
    "two speakers of one id": ({"speaker_id_map": {"ada": 0, "bo": 0}}, {}, "gives 'bo' the id 0"),
    "an id without speaker": ({"speaker_id_map": {"ada": 3}}, {}, "gives 'ada' the id 3"),
    "a name that is a number": ({"speaker_id_map": {"1": 0}}, {}, "the number of another one as its name"),
}


@each_row("name", FILES)
def test_files_that_contradict_each_other_are_refused_by_name(name: str, tmp_path: Path) -> None:
    config, tokenizer, says = FILES[name]
    write_tiny_checkpoint(tmp_path, 0, "speakers")
    for file, change in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        content = json.loads((tmp_path / file).read_text())
        (tmp_path / file).write_text(json.dumps(content | change))
    with pytest.raises(ConfigurationError, match=says):
        open_reader(read_checkpoint(tmp_path))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_speakers": 2, "speaker_id_map": {}}, "num_speakers is 2, but the ONNX file has weights for 3"),
        ({"phoneme_id_map": {"_": [0], "^": [1], "$": [2], "a": [99]}}, "phoneme_id_map is 99"),
    ],
)
def test_a_piper_voice_and_its_settings_must_agree(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    piper = write_piper_voice(tmp_path / "piper", write_tiny_checkpoint(tmp_path / "tiny", 0, "speakers"))
    (file,) = piper.glob("*.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ConfigurationError, match=says):
        read_weights(read_checkpoint(piper))


LETTERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "lower case": ({}, [*"abcdef "]),
    "capitals are symbols": ({}, [*"abcdefAB "]),
    "no lower case": ({"normalize": False}, [*"abcdefAB "]),
    "Romanian": ({"language": "ron"}, [*"abcdef\u0163 "]),
    "no blanks": ({"add_blank": False}, [*"abcdef "]),
    "another pad": ({"pad_token": "f"}, [*"abcdef "]),
}


@each_row("name", LETTERS)
def test_letters_are_the_ids_of_transformers(name: str, tmp_path: Path) -> None:
    settings, symbols = LETTERS[name]
    write_tiny_checkpoint(tmp_path, 0, "small")
    vocabulary = {symbol: number for number, symbol in enumerate(["_", *symbols])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    content = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"language": "deu"} | settings
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
    reader = open_reader(read_checkpoint(tmp_path))
    for text in ("AbBa fed", *(("AbBa fED", "\u021ba fa", "x ab?") if settings.get("normalize", True) else ())):
        expected = VitsTokenizer.from_pretrained(tmp_path)(text)["input_ids"]
        assert [item.ids for item in reader.read(text)] == [expected], text
