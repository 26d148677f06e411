"""Every number of config.json may differ from the published one: each stage's model takes it, or refuses it by name.

One number, with those that must agree with it, changes at a time; then many change together, by seed. vLLM builds our
model class on the meta device, and it must load every tensor that transformers' model of the same config.json has.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Qwen2_5OmniConfig,
    Qwen2_5OmniForConditionalGeneration,
    Qwen3OmniMoeConfig,
    Qwen3OmniMoeForConditionalGeneration,
)

from omni_stage.errors import ConfigurationError
from omni_stage.models.qwen3_omni.tiny.checkpoint import release_weights
from omni_stage.models.registry import installed_families
from support.engines.omni_stages import stage_config
from support.models.meta_models import create_vllm_config, meta_model, one_rank

pytestmark = pytest.mark.engine

Change = dict[str, Any]
STAGES = {
    "qwen3_omni": {"talker": "talker_config", "code2wav": "code2wav_config", "thinker": "thinker_config"},
    "qwen2_5_omni": {"talker": "talker_config", "token2wav": "token2wav_config", "thinker": "thinker_config"},
}
"""Family -> stage -> the part of config.json that most of its numbers are in."""
WIDE = {
    "thinker_config.text_config.hidden_size": 160,
    "thinker_config.audio_config.output_dim": 160,
    "thinker_config.vision_config.out_hidden_size": 160,
}
GROUPS = ("talker_config.num_code_groups", "talker_config.code_predictor_config.num_code_groups")
SERVED: dict[str, list[Change]] = {
    "qwen3_omni": [
        WIDE | {"talker_config.thinker_hidden_size": 160},
        {f"thinker_config.text_config.{name}": value for name, value in (("num_experts", 5), ("vocab_size", 700))},
        {"thinker_config.text_config.decoder_sparse_step": 2, "thinker_config.text_config.num_attention_heads": 6},
        {"thinker_config.vision_config.num_position_embeddings": 144},
        {"thinker_config.vision_config.patch_size": 14, "preprocessor.patch_size": 14},
        {"thinker_config.vision_config.depth": 3, "thinker_config.vision_config.deepstack_visual_indexes": [1]},
        {"thinker_config.audio_config.num_mel_bins": 80, "preprocessor.feature_size": 80},
        {"thinker_config.audio_config.downsample_hidden_size": 24, "thinker_config.audio_config.d_model": 96},
        dict.fromkeys((*GROUPS, "code2wav_config.num_quantizers"), 7),
        {"talker_config.text_config.vocab_size": 400, "talker_config.text_config.num_experts": 6},
        {"talker_config.text_config.decoder_sparse_step": 2},
        {"talker_config.text_config.mlp_only_layers": [0], "talker_config.text_config.num_hidden_layers": 3},
        {"talker_config.text_config.hidden_size": 128, "talker_config.code_predictor_config.hidden_size": 128},
        {"talker_config.text_config.num_key_value_heads": 1, "talker_config.text_config.moe_intermediate_size": 96},
        {"talker_config.code_predictor_config.head_dim": 16, "talker_config.code_predictor_config.vocab_size": 48},
        {"talker_config.codec_pad_id": 300, "talker_config.codec_eos_token_id": 302},
        {"talker_config.speaker_id": {"Zoe": 70}},
        {"code2wav_config.codebook_size": 90, "code2wav_config.decoder_dim": 96},
        {"code2wav_config.upsample_rates": [4, 3], "code2wav_config.upsampling_ratios": []},
        {"code2wav_config.num_attention_heads": 4, "code2wav_config.hidden_size": 96},
        {"code2wav_config.max_position_embeddings": 500, "code2wav_config.sliding_window": 1},
    ],
    "qwen2_5_omni": [
        WIDE
        | {"talker_config.embedding_size": 160}
        | {
            f"thinker_config.text_config.num_{kind}_heads": count
            for kind, count in (("attention", 5), ("key_value", 1))
        },
        {"thinker_config.text_config.num_hidden_layers": 3, "thinker_config.text_config.vocab_size": 700},
        {"thinker_config.audio_config.num_mel_bins": 80, "preprocessor.feature_size": 80},
        {"thinker_config.audio_config.encoder_layers": 2, "thinker_config.audio_config.n_window": 50},
        {"talker_config.vocab_size": 200, "talker_config.num_hidden_layers": 3},
        {"talker_config.hidden_size": 128, "talker_config.num_attention_heads": 6},
        {"talker_config.tts_codec_pad_token_id": 139, "talker_config.tts_codec_mask_token_id": 138},
        {"token2wav_config.dit_config.num_embeds": 90, "token2wav_config.dit_config.emb_dim": 48},
        {"token2wav_config.dit_config.repeats": 3, "token2wav_config.dit_config.block_size": 10},
        {"token2wav_config.dit_config.mel_dim": 20, "token2wav_config.bigvgan_config.mel_dim": 20},
        {"token2wav_config.dit_config.enc_dim": 40, "token2wav_config.dit_config.enc_emb_dim": 28},
        {"token2wav_config.bigvgan_config.upsample_rates": [4, 3]}
        | {"token2wav_config.bigvgan_config.upsample_kernel_sizes": [8, 5]},
    ],
}
REFUSED: dict[str, dict[str, Change]] = {
    "qwen3_omni": {
        "audio_config.n_window is 25": {"thinker_config.audio_config.n_window": 25},
        "vision_config.patch_size is 14": {"thinker_config.vision_config.patch_size": 14},
        "audio_config.num_mel_bins is 80": {"thinker_config.audio_config.num_mel_bins": 80},
        "sampling_rate is 24000": {"preprocessor.sampling_rate": 24_000},
    },
    "qwen2_5_omni": {
        "vision_config.spatial_merge_size is 3": {"thinker_config.vision_config.spatial_merge_size": 3},
        "sampling_rate is 24000": {"preprocessor.sampling_rate": 24_000},
        "mel_dim of bigvgan_config": {"token2wav_config.dit_config.mel_dim": 20},
        "block_size must be at least": {"token2wav_config.dit_config.repeats": 9},
        "the token id 140, which is not in the talker": {"talker_config.tts_codec_mask_token_id": 140},
    },
}


def write_changed(tiny: Path, directory: Path, change: Change) -> Path:
    """Writes the tiny checkpoint with other numbers. Its weights stay, and do not fit. Returns the directory."""
    for file in tiny.iterdir():
        (directory / file.name).symlink_to(file)
    files = {"preprocessor": "preprocessor_config.json", "": "config.json"}
    contents = {name: json.loads((tiny / name).read_text()) for name in files.values()}
    for path, value in change.items():
        file = files["preprocessor" if path.startswith("preprocessor.") else ""]
        *parts, last = path.removeprefix("preprocessor.").split(".")
        place = contents[file]
        for part in parts:
            place = place[part]
        place[last] = value
    for name, content in contents.items():
        (directory / name).unlink()
        (directory / name).write_text(json.dumps(content))
    return directory


def expected_weights(family: str, directory: Path) -> list[tuple[str, torch.Tensor]]:
    """Returns the names and tensors of transformers' model, on the meta device."""
    with torch.device("meta"):
        if family == "qwen3_omni":
            return list(
                release_weights(Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig.from_pretrained(directory)))
            )
        model = Qwen2_5OmniForConditionalGeneration(Qwen2_5OmniConfig.from_pretrained(directory))
        return list(model.state_dict().items())


@pytest.fixture
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One process for each test, because the groups of processes depend on the model that is built first."""
    with one_rank(tmp_path_factory.mktemp("ranks")):
        yield


class NoRows:
    """The thinker's embedding, all zeros, with the changed size."""

    def __init__(self, path: Path, _: str, dtype: torch.dtype) -> None:
        text = json.loads((path / "config.json").read_text())["thinker_config"]["text_config"]
        self.rows, self.width, self._dtype = text["vocab_size"], text["hidden_size"], dtype

    def read(self, ids: torch.Tensor) -> torch.Tensor:
        assert ids.numel() == 0 or 0 <= int(ids.min()) <= int(ids.max()) < self.rows
        return torch.zeros(ids.shape[0], self.width, dtype=self._dtype)


def check_served(family: str, directory: Path, stages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds these stages' components and models, and loads transformers' tensors."""
    monkeypatch.setattr(f"omni_stage.models.{family}.talker.component.EmbeddingTable", NoRows)
    weights = expected_weights(family, directory)
    for stage in stages:
        component = installed_families().factory(f"{family}/{stage}")(stage_config(stage, directory, family=family))
        component.prepare(component.warmup_request())
        with meta_model(create_vllm_config(stage, directory, component)) as model:
            assert model.load_weights(weights) == dict(model.named_parameters()).keys()


CASES = [
    pytest.param(family, change, id=f"{family}-{next(iter(change))}")
    for family, changes in SERVED.items()
    for change in changes
]


@pytest.mark.parametrize(("family", "change"), CASES)
@pytest.mark.usefixtures("rank")
def test_a_number_that_differs_is_served(
    make_tiny_checkpoint: Callable[..., Path],
    tmp_path: Path,
    family: str,
    change: Change,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = write_changed(make_tiny_checkpoint(0, "small", family), tmp_path, change)
    stages = [stage for stage, part in STAGES[family].items() if any(path.startswith(part) for path in change)]
    check_served(family, directory, stages, monkeypatch)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full), pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("family", SERVED)
@pytest.mark.usefixtures("rank")
def test_many_numbers_that_differ_together_are_served(
    make_tiny_checkpoint: Callable[..., Path], tmp_path: Path, family: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    picked = random.Random(seed).sample(SERVED[family], len(SERVED[family]) * 2 // 3)
    change = {path: value for part in picked for path, value in part.items()}
    directory = write_changed(make_tiny_checkpoint(0, "small", family), tmp_path, change)
    check_served(family, directory, list(STAGES[family]), monkeypatch)


@pytest.mark.parametrize(
    ("family", "problem"), [(family, problem) for family, problems in REFUSED.items() for problem in problems]
)
def test_a_number_that_is_not_served_is_refused_by_name(
    make_tiny_checkpoint: Callable[..., Path], tmp_path: Path, family: str, problem: str
) -> None:
    directory = write_changed(make_tiny_checkpoint(0, "small", family), tmp_path, REFUSED[family][problem])
    with pytest.raises(ConfigurationError, match=problem) as caught:
        installed_families().factory(f"{family}/thinker")(stage_config("thinker", directory, family=family))
    assert caught.value.details.field == "model.path"
