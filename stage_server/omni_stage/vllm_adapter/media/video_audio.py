"""Adds videos with their audio to vLLM's processor and model classes of Qwen-Omni. The prompt marks each such video.

vLLM 0.32 has an option of its own for such videos, `use_audio_in_video`. It is not used here, because:

- It applies to all videos of a prompt, needs one audio clip for each of them, and allows no other audio.
- If vLLM's cache holds a video, vLLM guesses from token counts whether the option is set.
- vLLM's positions for Qwen2.5-Omni are off by one.
- vLLM mixes up video and audio where a chunk of a prompt holds one stretch of each.

Interfaces of vLLM that the two mixins override:

    PairedProcessor: BaseMultiModalProcessor._maybe_apply_prompt_updates, private
    PairedModel:     SupportsMRoPE.get_mrope_input_positions, SupportsMultiModal.embed_input_ids
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import torch
from vllm.multimodal.inputs import MultiModalFeatureSpec
from vllm.multimodal.parse import VideoProcessorItems
from vllm.multimodal.processing.processor import PlaceholderFeaturesInfo
from vllm.multimodal.utils import set_mm_embedding_modality

from omni_proto.media_headers.video import FRAMES_PER_GRID, FRAMES_PER_SECOND
from omni_stage.vllm_adapter.media.positions import (
    AUDIO,
    IMAGE,
    VIDEO,
    Block,
    Tokens,
    audio_positions,
    expand,
    grid_positions,
    place_prompt,
    video_audio_positions,
)

_PAIR: Final = "+"


def placeholder_ids(thinker: Any) -> dict[str, int]:
    """Returns the ids that stand for media, by modality, from the thinker's part of config.json."""
    # For Qwen2.5-Omni, whose file has other names, transformers' configuration has these too.
    return {modality: int(getattr(thinker, f"{modality}_token_id")) for modality in (AUDIO, IMAGE, VIDEO)}


class PairedProcessor:
    """Mixin for a vLLM processor.

    The placeholder of a video, directly followed by the placeholder of an audio clip, stands for a video with its
    audio.
    """

    info: Any

    def interleave(self, times: np.ndarray, audio_count: int) -> np.ndarray:
        """See `positions.Interleave`."""
        raise NotImplementedError

    def _maybe_apply_prompt_updates(
        self, mm_items: Any, mm_res: Any
    ) -> tuple[list[int], Mapping[str, list[PlaceholderFeaturesInfo]]]:
        thinker = self.info.get_hf_config()
        tokens = Tokens(placeholder_ids(thinker), thinker.audio_start_token_id, thinker.audio_end_token_id)
        if not tokens.has_heard_video(mm_res.prompt_ids):
            plain: tuple[list[int], Mapping[str, list[PlaceholderFeaturesInfo]]]
            plain = super()._maybe_apply_prompt_updates(mm_items, mm_res)  # type: ignore[misc]
            return plain
        lengths = {
            modality: [len(updates[0].content.full) for updates in items]
            for modality, items in mm_res.prompt_updates.items()
        }
        videos = mm_items.get_items(VIDEO, VideoProcessorItems)
        # The processor's output does not have the grids of videos that its cache holds, so count the frames.
        grids = [-(-videos.get_num_frames(item) // FRAMES_PER_GRID) for item in range(len(videos))]
        per_second = float(thinker.position_id_per_seconds)
        expanded, places = expand(mm_res.prompt_ids, lengths, grids, tokens, self.interleave, per_second)
        found: dict[str, list[PlaceholderFeaturesInfo]] = {}
        for place in places:
            mask = None if place.mask is None else torch.from_numpy(place.mask)
            found.setdefault(place.modality, []).append(
                PlaceholderFeaturesInfo(place.modality, place.item, place.start, place.tokens, mask)
            )
        return expanded, found


class PairedModel:
    """Mixin for a vLLM model class; it comes before that class among the bases."""

    config: Any
    frames_share: ClassVar[bool]
    """See place_prompt."""

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: list[MultiModalFeatureSpec]
    ) -> tuple[torch.Tensor, int]:
        """Returns positions like transformers' get_rope_index, int64 [3, tokens], and the offset of later positions.

        Later positions continue from the last position, as in transformers' generate(). rope_deltas would continue from
        the largest position. If the video is wide and its audio is short, the largest position lies in the video, not
        in the text after it.
        """
        by_start: dict[int, dict[str, MultiModalFeatureSpec]] = {}
        for feature in mm_features:
            by_start.setdefault(feature.mm_position.offset, {})[feature.modality] = feature
        if not any(len(features) == 2 for features in by_start.values()):
            plain: tuple[torch.Tensor, int]
            plain = super().get_mrope_input_positions(input_tokens, mm_features)  # type: ignore[misc]
            return plain
        blocks = [self._block(start, features) for start, features in by_start.items()]
        positions = place_prompt(len(input_tokens), blocks, frames_share=self.frames_share)
        return torch.from_numpy(positions), int(positions[:, -1].max()) + 1 - len(input_tokens)

    def _block(self, start: int, features: Mapping[str, MultiModalFeatureSpec]) -> Block:
        per_second = float(self.config.position_id_per_seconds)
        merge = int(self.config.vision_config.spatial_merge_size)
        parts: dict[str, np.ndarray] = {}
        for modality, feature in features.items():
            if modality == AUDIO:
                parts[AUDIO] = audio_positions(feature.mm_position.get_num_embeds())
            else:
                t, h, w = (int(size) for size in _tensor(feature, f"{modality}_grid_thw").tolist())
                seconds = FRAMES_PER_GRID / FRAMES_PER_SECOND if modality == VIDEO else 1.0
                parts[modality] = grid_positions((t, h // merge, w // merge), per_second * seconds)
        if len(parts) == 1:
            return Block(start, next(iter(parts.values())))
        mask = features[VIDEO].mm_position.is_embed
        if mask is None:
            raise ValueError("a video and an audio clip share a place in the prompt, and neither has a mask")
        together = video_audio_positions(parts[VIDEO], parts[AUDIO], mask.numpy())
        return Block(start, together, mask.numpy())

    def embed_input_ids(
        self, input_ids: torch.Tensor, multimodal_embeddings: Any = None, *, is_multimodal: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns embeddings [tokens, H], with the rows of media at their placeholders."""
        if multimodal_embeddings is not None and len(multimodal_embeddings) and is_multimodal is not None:
            placeholders = input_ids[: is_multimodal.shape[0]].cpu()[is_multimodal.cpu()]
            multimodal_embeddings = in_token_order(multimodal_embeddings, placeholders, placeholder_ids(self.config))
        embedded: torch.Tensor = super().embed_input_ids(  # type: ignore[misc]
            input_ids, multimodal_embeddings, is_multimodal=is_multimodal
        )
        return embedded


def identify_pairs(features: Sequence[MultiModalFeatureSpec]) -> None:
    """Make the identifiers of a video and its audio, which share a place in the prompt, each stand for both.

    A KV block that ends within that place is hashed with the first medium's identifier alone (vLLM 0.32,
    `_gen_mm_extra_hash_keys` in v1/core/kv_cache_utils.py). So a video with another audio track would hit the blocks of
    this one.
    """
    by_place: dict[tuple[int, int], list[MultiModalFeatureSpec]] = {}
    for feature in features:
        place = feature.mm_position
        by_place.setdefault((place.offset, place.length), []).append(feature)
    for together in by_place.values():
        names = [feature.identifier for feature in together]
        if len(names) > 1 and not any(_PAIR in name for name in names):
            for feature in together:
                feature.identifier = _PAIR.join([feature.identifier, *names])


def in_token_order(
    embeddings: Sequence[torch.Tensor], placeholders: torch.Tensor, ids: Mapping[str, int]
) -> Sequence[torch.Tensor]:
    """Returns the rows of media, cut and ordered like `placeholders` (int64 [n]).

    vLLM gathers the rows medium by medium, and keeps that order if its own check finds no interleaved media.
    """
    kinds = [getattr(rows, "modality", None) for rows in embeddings]
    if not {VIDEO, AUDIO} <= set(kinds):
        return embeddings
    rows = {
        kind: torch.cat([part for part, of in zip(embeddings, kinds, strict=True) if of == kind])
        for kind in (IMAGE, VIDEO, AUDIO)
        if kind in kinds
    }
    names = {token: kind for kind, token in ids.items()}
    values, counts = torch.unique_consecutive(placeholders, return_counts=True)
    taken = dict.fromkeys(rows, 0)
    ordered: list[torch.Tensor] = []
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        kind = names[value]
        ordered.append(set_mm_embedding_modality(rows[kind][taken[kind] : taken[kind] + count], kind))
        taken[kind] += count
    return ordered


def _tensor(feature: MultiModalFeatureSpec, name: str) -> torch.Tensor:
    if feature.data is None:
        raise ValueError(f"vLLM holds no {name} of a medium")
    data = feature.data[name].data
    if not isinstance(data, torch.Tensor):
        raise TypeError(f"{name} of a medium is not a tensor")
    return data
