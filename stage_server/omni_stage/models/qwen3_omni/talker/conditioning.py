"""The talker's input, built as the thinker's tokens arrive. Pure except for reading rows of the embedding.

    positions  users' messages      3                    6                                 then
    row        text or media        <|im_start|>         tts_pad x 4, tts_bos,             text 1, text 2 ... tts_eos,
                                    assistant, newline   text 0                            tts_pad, repeated
    token      placeholder          placeholder          nothink, think_bos, think_eos,    the sampled codes
                                                         speaker, pad, bos

A row is the thinker's embedding of a text token, or the hidden state of a medium. The model has a projection for each
of these two kinds, and adds the token's codec embedding; placeholders have none. Text 0 is the first token of the
reply's text, after <|im_start|>, assistant and newline. System messages and earlier replies are left out. Source:
transformers 5.19, Qwen3OmniMoeForConditionalGeneration.generate.

M-RoPE positions equal the result of the talker's own get_rope_index. A medium has the same positions as in the thinker,
shifted to where the medium begins in this shorter prompt.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from omni_stage.errors import InvalidTensorError
from omni_stage.models.component import EdgeRows
from omni_stage.models.qwen3_omni.checkpoint import OmniCheckpoint, SpeechFacts
from omni_stage.models.qwen3_omni.turns import find_media, find_reply, find_user_tokens
from omni_stage.models.shared.embedding import EmbeddingTable
from omni_stage.models.shared.talker_feed import TalkerPart, TalkerPrompt

_FRAME = 3
"""Number of tokens before the reply's text: <|im_start|>, assistant, newline."""
_PADDING = 4
"""Number of tts_pad rows at the first codec tokens."""


class TalkerConditioning:
    """Builds the table in the module's docstring. The result does not depend on how the thinker's tokens are split."""

    def __init__(self, checkpoint: OmniCheckpoint, speech: SpeechFacts, table: EmbeddingTable, speaker: int) -> None:
        """`speaker`: the voice's id in the talker's vocabulary."""
        self._checkpoint = checkpoint
        self._speech = speech
        self._table = table
        self._speaker = speaker
        self._fresh: dict[str, list[torch.Tensor]] = {}
        self._complete: frozenset[str] = frozenset()
        self._ended = False
        self._next_position = 0

    @property
    def ended(self) -> bool:
        """Whether all tokens have arrived."""
        return self._ended

    def add(self, rows: EdgeRows) -> None:
        """Add token_ids, prompt_tokens, media and media_positions. Raises InvalidTensorError naming the tensor."""
        for name, dimensions in (("token_ids", 1), ("prompt_tokens", 1), ("media", 2), ("media_positions", 2)):
            tensor = rows.tensors.get(name)
            if tensor is None:
                continue
            if tensor.dim() != dimensions:
                raise InvalidTensorError(
                    f"{name}: must have {dimensions} dimensions, got {tensor.dim()}", field=f"tensors.{name}"
                )
            self._fresh.setdefault(name, []).append(tensor)
        ids = rows.tensors.get("token_ids")
        # An id outside of the embedding table would read beyond it.
        if ids is not None and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self._table.rows:
            raise InvalidTensorError(
                f"token_ids: every id must be at least 0 and below {self._table.rows}",
                field="tensors.token_ids",
                limit=self._table.rows,
            )
        self._complete = self._complete | rows.complete
        self._ended = self._ended or rows.ended

    def take(self) -> TalkerPart | None:
        """Returns a part with all rows whose positions are known; None if there is none. Raises InvalidTensorError."""
        if self._next_position == 0:
            return self._first_part()
        fresh = self._table.read(self._take("token_ids"))
        if self._ended:
            fresh = torch.cat([fresh, self._speech_rows("end", "padding")])
        return self._place(fresh, None) if fresh.shape[0] else None

    def _first_part(self) -> TalkerPart | None:
        """Returns a part with the prompt and the reply so far; None until prompt, media and text 0 have arrived."""
        counts = torch.cat(self._fresh.get("prompt_tokens", [torch.empty(0, dtype=torch.int64)]))
        ids = self._joined("token_ids")
        if not counts.numel() or ids.shape[0] < int(counts[0]):
            self._refuse_at_end("token_ids: fewer than prompt_tokens, or prompt_tokens is missing")
            return None
        prompt = ids[: int(counts[0])]
        if int(counts[0]) < 1 or counts.shape[0] != 1:
            raise InvalidTensorError("prompt_tokens: must be one row of at least 1", field="tensors.prompt_tokens")
        reply = find_reply(prompt, self._checkpoint.text)
        if reply is None:
            raise InvalidTensorError(
                "token_ids: the prompt has no assistant's turn, so there is nothing to speak; send a chat",
                field="tensors.token_ids",
            )
        heard = prompt[find_user_tokens(prompt, self._checkpoint.text)]
        is_media = find_media(heard, self._checkpoint.placeholder_ids)
        media = self._media(int(is_media.sum()))
        if media is None:
            self._refuse_at_end("media: fewer rows than the prompt has tokens of media")
            return None
        text = ids[reply:]
        if text.shape[0] <= _FRAME:
            return None
        return self._build(heard, is_media, *media, text)

    def _refuse_at_end(self, problem: str) -> None:
        """Raises InvalidTensorError if the input has ended. Before the end, missing values may still arrive."""
        if self._ended:
            raise InvalidTensorError(problem, field=f"tensors.{problem.partition(':')[0]}")

    def _media(self, count: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Returns the media's rows [count, H] and positions [count, 3]; None while some are missing.

        Raises InvalidTensorError.
        """
        width, limit = self._table.width, self._speech.talker_positions
        rows = torch.cat(self._fresh.get("media", [torch.empty(0, width)]))
        positions = torch.cat(self._fresh.get("media_positions", [torch.empty(0, 3, dtype=torch.int64)]))
        if rows.shape[0] < count or positions.shape[0] < count:
            return None
        if rows.shape[0] > count or rows.shape[1] != width:
            raise InvalidTensorError(
                f"media: must be [{count}, {width}], got {list(rows.shape)}", field="tensors.media"
            )
        if positions.shape != (count, 3) or (count and not 0 <= int(positions.min()) <= int(positions.max()) < limit):
            raise InvalidTensorError(
                f"media_positions: must be [{count}, 3], each at least 0 and below {limit}",
                field="tensors.media_positions",
                limit=limit,
            )
        return rows, positions

    def _build(
        self,
        heard: torch.Tensor,
        is_media: torch.Tensor,
        media: torch.Tensor,
        media_positions: torch.Tensor,
        text: torch.Tensor,
    ) -> TalkerPart:
        codec = self._speech.codec
        text_here, media_here = codec.placeholders
        rows = self._table.read(torch.where(is_media, 0, heard))
        rows[is_media] = media.to(rows.dtype)
        spoken = self._table.read(text)
        parts = [
            rows,
            spoken[:_FRAME],
            self._speech_rows(*["padding"] * _PADDING, "start"),
            spoken[_FRAME:],
        ]
        if self._ended:
            parts.append(self._speech_rows("end", "padding"))
        tokens = torch.where(is_media, media_here, text_here).tolist() + [text_here] * _FRAME
        tokens += [codec.no_think, codec.think_start, codec.think_end, self._speaker, codec.padding, codec.start]
        audio, _, _ = self._checkpoint.placeholder_ids
        positions, following = place_positions(is_media, heard == audio, media_positions, len(tokens))
        if following >= self._speech.talker_positions:
            raise InvalidTensorError(
                f"token_ids: users' messages have {heard.shape[0]} tokens, more than fit the talker's "
                f"{self._speech.talker_positions} positions",
                field="tensors.token_ids",
                limit=self._speech.talker_positions,
            )
        self._fresh.clear()
        prompt = TalkerPrompt(tokens, torch.cat(parts), positions, following - len(tokens))
        return self._place(prompt.input_rows, prompt)

    def _place(self, rows: torch.Tensor, prompt: TalkerPrompt | None) -> TalkerPart:
        offset = self._next_position
        self._next_position += rows.shape[0]
        return TalkerPart(offset, rows, prompt, last=self._ended)

    def _speech_rows(self, *names: str) -> torch.Tensor:
        text = self._checkpoint.text
        ids = {"start": text.speech_start, "end": text.speech_end, "padding": text.speech_padding}
        return self._table.read(torch.tensor([ids[name] for name in names]))

    def _joined(self, name: str) -> torch.Tensor:
        return torch.cat(self._fresh.get(name, [torch.empty(0, dtype=torch.int64)]))

    def _take(self, name: str) -> torch.Tensor:
        tensor = self._joined(name)
        self._fresh.pop(name, None)
        return tensor


def place_positions(
    is_media: torch.Tensor, is_sound: torch.Tensor, media_positions: torch.Tensor, length: int
) -> tuple[torch.Tensor, int]:
    """Returns M-RoPE positions int64 [length, 3] of a prompt, and the position that follows.

    `is_media`, `is_sound`: bool [n], n <= length: which of the first n tokens stand for media, and which of these for
    audio. `media_positions`: int64 [media, 3], the media's positions in the thinker. A stretch of text or media begins
    after the largest position of the stretch before it. Within text, positions increase by one; within media, they keep
    their offsets. If a video's audio lies between its frames, only the video's last stretch of frames or audio
    determines the next position. An earlier frame may have a larger position, because of its width.
    """
    positions = torch.empty(length, 3, dtype=torch.int64)
    kinds = torch.cat([is_media, is_media.new_zeros(length - is_media.shape[0])])
    following = used = 0
    for begin, end in _stretches(kinds):
        count = end - begin
        if kinds[begin]:
            own = media_positions[used : used + count]
            used += count
            positions[begin:end] = own - own.min() + following
            begin += _stretches(is_sound[begin:end])[-1][0]
        else:
            positions[begin:end] = (torch.arange(count) + following)[:, None]
        following = int(positions[begin:end].max()) + 1
    return positions, following


def _stretches(kinds: torch.Tensor) -> list[tuple[int, int]]:
    """Returns the ranges [begin, end) of equal values in bool [n], n > 0."""
    borders = (torch.nonzero(kinds[1:] != kinds[:-1]).flatten() + 1).tolist()
    return list(pairwise([0, *borders, kinds.shape[0]]))
