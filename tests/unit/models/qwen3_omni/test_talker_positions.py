"""The positions of the talker's prompt, derived from the thinker's, equal transformers' get_rope_index for a talker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe, processing_qwen3_omni_moe

from omni_stage.models.qwen3_omni.talker.component import place_positions
from omni_stage.vllm_adapter.media.positions import AUDIO, IMAGE, VIDEO, Tokens, expand, interleave_times

IDS = {AUDIO: 7, IMAGE: 8, VIDEO: 9}
BEGIN, END, AUDIO_BEGIN, AUDIO_END, WORD = 1, 2, 3, 4, 20
PER_SECOND = 13
HEIGHT, WIDTH = 2, 40
SYSTEM = 6
"""Tokens before the user's message: the thinker reads them, the talker does not."""


@pytest.mark.parametrize(
    ("grids", "audio"),
    [
        pytest.param(2, 0, id="seen alone"),
        pytest.param(1, 13, id="a second"),
        pytest.param(3, 5, id="sound that ends early"),
        pytest.param(2, 140, id="sound that goes on"),
        pytest.param(1, 8, id="wider than its sound is long"),
    ],
)
@pytest.mark.parametrize("tail", [1, 12, 60])
def test_a_medium_keeps_its_shape(grids: int, audio: int, tail: int) -> None:
    """Image, audio and video keep the shape of their positions, but begin where the talker's text before them ends."""
    video = [WORD, BEGIN, IDS[VIDEO], *([IDS[AUDIO]] if audio else []), END]
    image = [WORD, BEGIN, IDS[IMAGE], END]
    clip = [AUDIO_BEGIN, IDS[AUDIO], AUDIO_END]
    lengths = {IMAGE: [HEIGHT * WIDTH], AUDIO: [13, audio], VIDEO: [grids * HEIGHT * WIDTH]}
    tokens = Tokens(IDS, AUDIO_BEGIN, AUDIO_END)
    prompt = [*[WORD] * SYSTEM, *image, *clip, *video]
    expanded, _ = expand(prompt, lengths, [grids], tokens, interleave_times, PER_SECOND)
    thinker = theirs(expanded, grids, [13, audio] if audio else [13])
    heard = torch.tensor(expanded[SYSTEM:])
    is_media = torch.isin(heard, torch.tensor(list(IDS.values())))
    length = len(heard) + tail
    positions, following = place_positions(is_media, heard == IDS[AUDIO], thinker[SYSTEM:][is_media], length)
    expected = theirs([*heard.tolist(), *[WORD] * tail], grids, [13, audio] if audio else [13])
    assert positions.tolist() == expected.tolist()
    assert following == int(expected[-1].max()) + 1


def theirs(ids: list[int], grids: int, audios: list[int]) -> torch.Tensor:
    """Returns transformers' positions, int64 [tokens, 3]. Computing them needs no weights."""
    owner: Any = modeling_qwen3_omni_moe.Qwen3OmniMoeTalkerForConditionalGeneration
    config = SimpleNamespace(
        image_token_id=8, video_token_id=9, audio_token_id=7, vision_start_token_id=BEGIN,
        audio_start_token_id=AUDIO_BEGIN, position_id_per_seconds=PER_SECOND,
        audio_config=SimpleNamespace(n_window=50),
    )  # fmt: skip
    this = SimpleNamespace(config=config, spatial_merge_size=2)
    this.get_llm_pos_ids_for_vision = owner.get_llm_pos_ids_for_vision.__get__(this)
    frames = processing_qwen3_omni_moe._get_feat_extract_output_lengths(torch.arange(2000))
    positions, _ = owner.get_rope_index(
        this,
        torch.tensor([ids]),
        image_grid_thw=torch.tensor([[1, 2 * HEIGHT, 2 * WIDTH]]),
        video_grid_thw=torch.tensor([[grids, 2 * HEIGHT, 2 * WIDTH]]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        use_audio_in_video=len(audios) == 2,
        audio_seqlens=torch.tensor([int((frames == tokens).nonzero()[0]) for tokens in audios]),
        second_per_grids=torch.tensor([1.0]),
    )
    return positions[:, 0].T.to(torch.int64)
