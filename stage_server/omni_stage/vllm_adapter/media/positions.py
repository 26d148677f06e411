"""Computes where the tokens of a video and of its own audio are in a prompt, and their M-RoPE positions. Pure.

In a prompt, two placeholders stand for a video with its audio: one for the video, then one for the audio:

    <|vision_bos|> VIDEO AUDIO <|vision_eos|>
    -> <|vision_bos|><|audio_bos|> V V A A V V A A <|audio_eos|><|vision_eos|>

This is what transformers 5.19's processors and get_rope_index do with use_audio_in_video.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from omni_proto.media_headers.video import FRAMES_PER_GRID, FRAMES_PER_SECOND

IMAGE, VIDEO, AUDIO = "image", "video", "audio"

Interleave = Callable[[np.ndarray, int], np.ndarray]
"""Orders the tokens of a video and its audio. Arguments: the time of each of v video tokens, [v], in M-RoPE positions;
the number a of audio tokens. Returns bool [v + a]: whether the token at this place belongs to the video."""


def interleave_chunks(times: np.ndarray, audio_count: int, chunk: int) -> np.ndarray:
    """Interleave as Qwen2.5-Omni does: `chunk` positions of video, then `chunk` positions of audio, and so on."""
    video = times.astype(np.int64) // chunk
    audio = np.arange(audio_count) // chunk
    order = np.argsort(np.concatenate([video * 2, audio * 2 + 1]), kind="stable")
    return np.asarray(order < times.size)


def interleave_times(times: np.ndarray, audio_count: int) -> np.ndarray:
    """Interleave as Qwen3-Omni does: tokens ordered by time, the video's first if both are equal."""
    order = np.argsort(np.concatenate([times, np.arange(audio_count)]), kind="stable")
    return np.asarray(order < times.size)


@dataclass(frozen=True, slots=True)
class MediaPosition:
    """The tokens of one medium in the expanded prompt."""

    modality: str
    item: int
    start: int
    tokens: list[int]
    """Tokens from the medium's first to its last. The places of a video and of its audio both list the tokens of both.
    """
    mask: np.ndarray | None = None
    """bool [tokens]: which tokens belong to this medium; None: all of them."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids of placeholders, and of the tokens around a video with its audio."""

    placeholders: Mapping[str, int]
    """Modality -> placeholder id."""
    audio_begins: int
    audio_ends: int

    def has_heard_video(self, prompt: Sequence[int]) -> bool:
        """Returns whether the prompt has a video with its audio."""
        video, audio = self.placeholders[VIDEO], self.placeholders[AUDIO]
        return any(first == video and second == audio for first, second in pairwise(prompt))


def expand(
    prompt: Sequence[int],
    lengths: Mapping[str, Sequence[int]],
    grids: Sequence[int],
    tokens: Tokens,
    interleave: Interleave,
    positions_per_second: float,
) -> tuple[list[int], list[MediaPosition]]:
    """Returns the prompt with each placeholder expanded to its medium's tokens, and the places of the media.

    lengths: number of tokens of each medium, by modality. grids: for each video, its number of grids in time (one grid
    for FRAMES_PER_GRID frames).
    """
    kinds = {token: modality for modality, token in tokens.placeholders.items()}
    expanded: list[int] = []
    places: list[MediaPosition] = []
    taken = dict.fromkeys(kinds.values(), 0)

    def take(modality: str) -> tuple[int, int]:
        item = taken[modality]
        taken[modality] += 1
        return item, lengths[modality][item]

    skip = False
    for index, token in enumerate(prompt):
        if skip:
            skip = False
            continue
        modality = kinds.get(token)
        if modality is None:
            expanded.append(token)
            continue
        item, count = take(modality)
        if modality == VIDEO and list(prompt[index + 1 : index + 2]) == [tokens.placeholders[AUDIO]]:
            skip = True
            track, heard = take(AUDIO)
            times = video_times(grids[item], count // grids[item], positions_per_second)
            is_video = interleave(times, heard)
            inside = np.where(is_video, tokens.placeholders[VIDEO], tokens.placeholders[AUDIO]).tolist()
            start = len(expanded) + 1
            places.append(MediaPosition(VIDEO, item, start, inside, is_video))
            places.append(MediaPosition(AUDIO, track, start, inside, ~is_video))
            expanded += [tokens.audio_begins, *inside, tokens.audio_ends]
        else:
            inside = [token] * count
            places.append(MediaPosition(modality, item, len(expanded), inside))
            expanded += inside
    return expanded, places


def video_times(grids: int, tokens_per_grid: int, positions_per_second: float) -> np.ndarray:
    """Returns the positions [tokens] of a video's tokens in time, from 0."""
    seconds = FRAMES_PER_GRID / FRAMES_PER_SECOND
    return np.repeat(np.arange(grids) * seconds * positions_per_second, tokens_per_grid)


@dataclass(frozen=True, slots=True)
class Block:
    """The positions of a medium's tokens, relative to the first."""

    start: int
    positions: np.ndarray
    """int64 [3, tokens]."""
    is_video: np.ndarray | None = None
    """For a video with its audio: bool [tokens], whether a token belongs to the video. Else None."""

    @property
    def following(self) -> int:
        """Position of the token after the medium, relative to the medium's first token.

        It is one more than the largest position of the medium. A video with its audio consists of stretches of video
        and stretches of audio, and only the last stretch counts, as in transformers. So if the medium ends with audio,
        the video's width does not count.
        """
        if self.is_video is None:
            return int(self.positions.max()) + 1
        changes = np.flatnonzero(np.diff(self.is_video))
        last = int(changes[-1]) + 1 if changes.size else 0
        return int(self.positions[:, last:].max()) + 1


def grid_positions(grid: tuple[int, int, int], per_grid: float) -> np.ndarray:
    """Returns the positions, int64 [3, t * h * w], of t grids of h by w tokens, each `per_grid` positions long."""
    positions = np.indices(grid)
    positions[0] = (positions[0] * per_grid).astype(np.int64)
    return positions.reshape(3, -1)


def audio_positions(count: int) -> np.ndarray:
    """Returns the positions, int64 [3, count], of an audio clip."""
    return np.broadcast_to(np.arange(count), (3, count))


def video_audio_positions(video: np.ndarray, track: np.ndarray, is_video: np.ndarray) -> np.ndarray:
    """Returns the positions, int64 [3, v + a], of a video [3, v] and its audio [3, a] that begin together."""
    positions = np.empty((3, is_video.size), np.int64)
    positions[:, is_video] = video
    positions[:, ~is_video] = track
    return positions


def place_prompt(length: int, blocks: Iterable[Block], *, frames_share: bool) -> np.ndarray:
    """Returns M-RoPE positions int64 [3, length] of a prompt. Each medium or stretch of text begins where the previous
    one ends.

    A video with its audio begins with two special tokens and ends with two. `frames_share`: whether the two tokens at
    each end share a position, as those of Qwen2.5-Omni do in transformers.
    """
    ordered = sorted(blocks, key=lambda block: block.start)
    repeats = np.zeros(length + 1, np.int64)
    if frames_share:
        for block in ordered:
            if block.is_video is not None:
                repeats[[block.start - 1, block.start + block.positions.shape[1] + 1]] = 1
    result = np.empty((3, length), np.int64)
    cursor = following = 0
    for block in [*ordered, Block(length, np.empty((3, 0), np.int64))]:
        text = np.arange(block.start - cursor) - np.cumsum(repeats[cursor : block.start]) + following
        result[:, cursor : block.start] = text
        following = int(text[-1]) + 1 if text.size else following
        cursor = block.start + block.positions.shape[1]
        if block.positions.size:
            result[:, block.start : cursor] = block.positions + following
            following += block.following
    return result
