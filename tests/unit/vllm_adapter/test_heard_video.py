"""Tokens and positions of videos with audio equal those that transformers' own classes compute for the same sizes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni, processing_qwen2_5_omni
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe, processing_qwen3_omni_moe
from vllm import SamplingParams
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import RequestOutputKind
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.request import Request

from omni_proto.media_headers.video import sample_count
from omni_stage.decoding.video import spread
from omni_stage.vllm_adapter.core.output_processor import OmniOutputProcessor
from omni_stage.vllm_adapter.media.positions import (
    AUDIO,
    IMAGE,
    VIDEO,
    Block,
    MediaPosition,
    Tokens,
    audio_positions,
    expand,
    grid_positions,
    interleave_chunks,
    interleave_times,
    place_prompt,
    video_audio_positions,
)
from omni_stage.vllm_adapter.media.video_audio import identify_pairs

IDS = {AUDIO: 7, IMAGE: 8, VIDEO: 9}
BEGIN, END, AUDIO_BEGIN, AUDIO_END = 1, 2, 3, 4
TOKENS = Tokens(IDS, AUDIO_BEGIN, AUDIO_END)
NAMES = {7: "<A>", 8: "<I>", 9: "<V>", BEGIN: "<b>", END: "<e>", AUDIO_BEGIN: "<s>", AUDIO_END: "<t>", 20: "x", 21: "y"}
HEIGHT, WIDTH = 2, 40

CASES = [
    pytest.param(1, 26, id="a second"),
    pytest.param(2, 50, id="two"),
    pytest.param(3, 31, id="sound that ends early"),
    pytest.param(2, 140, id="sound that goes on"),
    pytest.param(5, 1, id="hardly a sound"),
    pytest.param(7, 176, id="seven"),
]


def qwen2_5(times: np.ndarray, audios: int) -> np.ndarray:
    return interleave_chunks(times, audios, 50)


FAMILIES = [
    pytest.param(processing_qwen2_5_omni.Qwen2_5OmniProcessor, "2.5", qwen2_5, 25, id="qwen2.5"),
    pytest.param(
        processing_qwen2_5_omni.Qwen2_5OmniProcessor,
        "2.5",
        lambda times, audios: interleave_chunks(times, audios, 40),
        20,
        id="qwen2.5 with another rate",
    ),
    pytest.param(processing_qwen3_omni_moe.Qwen3OmniMoeProcessor, "3", interleave_times, 13, id="qwen3"),
]


def ours(grids: int, audio: int, interleave: Any, per_second: int) -> tuple[list[int], list[MediaPosition]]:
    """Returns the tokens and places of a prompt with text, an image, audio of 9 tokens, and a video with audio."""
    prompt = [20, BEGIN, 8, END, 21, AUDIO_BEGIN, 7, AUDIO_END, 20, BEGIN, 9, 7, END, 21, 20]
    lengths = {IMAGE: [HEIGHT * WIDTH], AUDIO: [9, audio], VIDEO: [grids * HEIGHT * WIDTH]}
    return expand(prompt, lengths, [grids], TOKENS, interleave, per_second)


@pytest.mark.parametrize(("grids", "audio"), CASES)
@pytest.mark.parametrize(("processor", "family", "interleave", "per_second"), FAMILIES)
def test_tokens(processor: Any, family: str, interleave: Any, per_second: int, grids: int, audio: int) -> None:
    merge = SimpleNamespace(merge_size=2)
    this = SimpleNamespace(
        audio_token="<A>", image_token="<I>", video_token="<V>", vision_bos_token="<b>", vision_eos_token="<e>",
        audio_bos_token="<s>", audio_eos_token="<t>", image_processor=merge, video_processor=merge,
    )  # fmt: skip
    this.get_chunked_index = lambda *given: processor.get_chunked_index(this, *given)
    (text,) = processor.replace_multimodal_special_tokens(
        this,
        ["x<b><I><e>y<s><A><t>x<b><V><e>yx"],
        iter([9, audio]),
        iter([np.array([1, 2 * HEIGHT, 2 * WIDTH])]),
        iter([np.array([grids, 2 * HEIGHT, 2 * WIDTH])]),
        video_second_per_grid=iter([1.0]),
        use_audio_in_video=True,
        position_id_per_seconds=per_second,
        seconds_per_chunk=2.0,
    )
    expanded, places = ours(grids, audio, interleave, per_second)
    assert "".join(NAMES[token] for token in expanded) == text
    assert [place.modality for place in places] == [IMAGE, AUDIO, VIDEO, AUDIO]
    assert [place.item for place in places] == [0, 0, 0, 1]
    for place in places:
        inside = np.array(expanded[place.start : place.start + len(place.tokens)])
        assert (inside == place.tokens).all()
        mask = np.ones(inside.size, bool) if place.mask is None else place.mask
        assert (inside[mask] == IDS[place.modality]).all()


@pytest.mark.parametrize(("grids", "audio"), CASES)
@pytest.mark.parametrize(("processor", "family", "interleave", "per_second"), FAMILIES)
def test_positions(processor: Any, family: str, interleave: Any, per_second: int, grids: int, audio: int) -> None:
    expanded, places = ours(grids, audio, interleave, per_second)
    sizes = {AUDIO: [9, audio]}
    video = grid_positions((grids, HEIGHT, WIDTH), per_second)
    mask = next(place.mask for place in places if place.modality == VIDEO)
    assert mask is not None
    blocks = [
        Block(places[0].start, grid_positions((1, HEIGHT, WIDTH), per_second)),
        Block(places[1].start, audio_positions(sizes[AUDIO][0])),
        Block(places[2].start, video_audio_positions(video, audio_positions(audio), mask), mask),
    ]
    mine = place_prompt(len(expanded), blocks, frames_share=family == "2.5")
    expected = theirs(family, expanded, grids, [9, audio], per_second)
    assert mine.tolist() == expected


def theirs(family: str, expanded: list[int], grids: int, audios: list[int], per_second: int) -> list[Any]:
    """Returns the positions that get_rope_index of transformers' thinkers computes; it needs no weights."""
    module: Any = modeling_qwen2_5_omni if family == "2.5" else modeling_qwen3_omni_moe
    prefix = "Qwen2_5Omni" if family == "2.5" else "Qwen3OmniMoe"
    owner = getattr(module, f"{prefix}PreTrainedModelForConditionalGeneration")
    config = SimpleNamespace(
        image_token_id=8, video_token_id=9, audio_token_id=7, vision_start_token_id=BEGIN,
        audio_start_token_id=AUDIO_BEGIN, position_id_per_seconds=per_second, seconds_per_chunk=2.0,
        audio_config=SimpleNamespace(n_window=50),
    )  # fmt: skip
    this = SimpleNamespace(config=config, spatial_merge_size=2)
    for name in ("get_llm_pos_ids_for_vision", "get_chunked_index"):
        setattr(this, name, getattr(owner, name).__get__(this))
    ids = torch.tensor([expanded])
    positions, _ = owner.get_rope_index(
        this,
        ids,
        image_grid_thw=torch.tensor([[1, 2 * HEIGHT, 2 * WIDTH]]),
        video_grid_thw=torch.tensor([[grids, 2 * HEIGHT, 2 * WIDTH]]),
        attention_mask=torch.ones_like(ids),
        use_audio_in_video=True,
        audio_seqlens=torch.tensor([frames_of(family, audio) for audio in audios]),
        second_per_grids=torch.tensor([1.0]),
    )
    return positions[:, 0].to(torch.int64).tolist()


def frames_of(family: str, tokens: int) -> int:
    """Returns the smallest number of audio frames that becomes `tokens` tokens."""
    if family == "2.5":
        return 4 * tokens
    lengths = processing_qwen3_omni_moe._get_feat_extract_output_lengths
    return next(frames for frames in range(1, 2000) if int(lengths(torch.tensor(frames))) == tokens)


@pytest.mark.parametrize(
    ("frames", "seconds", "count"),
    [(300, 10, 20), (20, 2.0, 4), (10, 0.4, 4), (3, 1.0, 2), (2, 0.1, 2), (1, 1.0, 0), (75, 2.5, 4), (9000, 600, 768)],
)
def test_how_many_frames_are_seen(frames: int, seconds: float, count: int) -> None:
    """transformers' video processor, which gets a frame rate and not a duration, chooses the same number of frames."""
    from transformers import Qwen2VLVideoProcessor
    from transformers.video_utils import VideoMetadata

    assert sample_count(frames, seconds) == count
    if count:
        metadata = VideoMetadata(total_num_frames=frames, fps=frames / seconds)
        assert len(Qwen2VLVideoProcessor().sample_frames(metadata, fps=2.0)) == count


@pytest.mark.parametrize(("total", "count"), [(20, 4), (300, 20), (7, 6), (2, 2), (7199, 768), (1001, 500)])
def test_which_frames_are_seen(total: int, count: int) -> None:
    """As in qwen_omni_utils 0.0.9: torch.linspace(0, total_frames - 1, nframes).round().long()."""
    assert spread(total, count) == torch.linspace(0, total - 1, count).round().long().tolist()


def block_hashes(*features: tuple[str, str, int, int]) -> list[bytes]:
    """Returns the hashes of a prompt's blocks. Features: modality, identifier, offset, length."""
    request = make_request("a-1", features)
    OmniOutputProcessor(None, log_stats=False).add_request(request, None)
    init_none_hash(sha256)
    return Request.from_engine_core_request(request, get_request_block_hasher(16, sha256)).block_hashes


def make_request(name: str, features: Sequence[tuple[str, str, int, int]]) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=name,
        external_req_id=name,
        prompt_token_ids=[5] * 96,
        mm_features=[
            MultiModalFeatureSpec(None, modality, identifier, PlaceholderRange(offset, length))
            for modality, identifier, offset, length in features
        ],
        sampling_params=SamplingParams(detokenize=False, output_kind=RequestOutputKind.DELTA),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


def test_a_video_with_another_audio_shares_no_cached_block_after_its_start() -> None:
    """Also no block in the middle of the video, for which vLLM looks at the first of the two media alone."""
    first = block_hashes(("video", "v", 20, 60), ("audio", "a", 20, 60))
    other = block_hashes(("video", "v", 20, 60), ("audio", "b", 20, 60))
    again = block_hashes(("video", "v", 20, 60), ("audio", "a", 20, 60))
    assert [mine == its for mine, its in zip(first, other, strict=True)] == [True] + [False] * 5
    assert first == again


def test_only_media_in_one_place_name_each_other() -> None:
    request = make_request(
        "a", [("video", "v", 2, 9), ("audio", "a", 2, 9), ("audio", "b", 20, 9), ("image", "i", 31, 4)]
    )
    features = request.mm_features or []
    for _ in range(2):
        identify_pairs(features)
    names = [feature.identifier for feature in features]
    assert names[2:] == ["b", "i"]
    assert names[0] != names[1]
    assert all("v" in name and "a" in name for name in names[:2])
