"""Component qwen3_omni/talker: reads the thinker's tokens, writes frames of codes in the chosen voice.

The talker's input, built as the thinker's tokens arrive. Pure except for reading rows of the embedding.

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

import secrets
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_stage.errors import InvalidTensorError
from omni_stage.exchange import Array
from omni_stage.models.component import EdgeInput, EdgeRows, Emitter, EngineInput, EngineStep, StageRequest, StageStep
from omni_stage.models.component.request import pick_voice
from omni_stage.models.qwen3_omni.checkpoint import (
    OmniCheckpoint,
    SpeechFacts,
    find_media,
    find_reply,
    find_user_tokens,
    read_speaking_checkpoint,
)
from omni_stage.models.qwen3_omni.manifest import TALKER
from omni_stage.models.qwen3_omni.model_configs import pick_talker
from omni_stage.models.qwen3_omni.schemas import find_pace, talker2code2wav_schema, thinker2talker_schema
from omni_stage.models.shared.config_file import torch_dtype
from omni_stage.models.shared.talker_feed import (
    THINKER_EMBEDDING,
    EmbeddingTable,
    TalkerFeed,
    TalkerPart,
    TalkerPrompt,
    prepare_whole,
    repeat_limit,
)
from omni_stage.vllm_adapter.scheduling.playback import PACE_KEY

GREEDY, SEED = "predictor_greedy", "predictor_seed"
"""Names of the code predictor's settings in a request's payload."""


class Talker:
    """The talker of one checkpoint; see the module's docstring."""

    facts = TALKER
    default_sampling = TALKER.default_sampling

    def __init__(
        self, checkpoint: OmniCheckpoint, speech: SpeechFacts, table: EmbeddingTable, pace: Mapping[str, Any]
    ) -> None:
        """`table`: the thinker's input embedding; `pace`: see schemas.find_pace."""
        self._checkpoint = checkpoint
        self._pace = pace
        self._speech = speech
        self._table = table
        self.row_plays_s: float | None = 1 / pace["tokens_per_second"]
        self.voices: Sequence[str] = speech.voices
        self.input_schema = thinker2talker_schema(checkpoint)
        self.output_schema = talker2code2wav_schema(speech)

    def engine_kwargs(self) -> dict[str, Any]:
        """Returns arguments for our model class. The engine needs no tokenizer, because the tokens are not text."""
        return {
            "model": str(self._checkpoint.path),
            "dtype": self._checkpoint.dtype,
            "hf_overrides": pick_talker,
            "skip_tokenizer_init": True,
            # Use vLLM's own defaults, because vLLM knows no name in the checkpoint's generation_config.json.
            "generation_config": "vllm",
            "additional_config": {"omni": {"capture_rows": True, "hash_inputs": True}, PACE_KEY: self._pace},
        }

    def prepare(self, request: StageRequest) -> EngineInput:
        """Convert the thinker's tensors. A reply without text ends as EMPTY_INPUT."""
        return prepare_whole(request, self.open_feed(request), component=TALKER.id, missing="token_ids")

    def open_feed(self, request: StageRequest) -> TalkerFeed:
        """Returns a feed that makes the same input as `prepare`, part by part."""
        voice = pick_voice(request.voice, self.voices)
        codec, sampling = self._speech.codec, request.sampling
        conditioning = TalkerConditioning(self._checkpoint, self._speech, self._table, codec.speakers[voice.lower()])
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        temperature = self.default_sampling.temperature if sampling.temperature is None else sampling.temperature
        return TalkerFeed(
            conditioning,
            (codec.end,),
            # With ignore_eos, generation must continue to max_tokens, so the token that ends the stream is suppressed.
            ignore_eos=bool(sampling.ignore_eos),
            repeat_limit=repeat_limit(self._pace),
            # As in transformers, the code predictor is greedy if the talker is. Otherwise it has its own sampling
            # values.
            settings={GREEDY: [int(temperature == 0.0)], SEED: [seed]},
        )

    def emitter(self, request: StageRequest, prepared: EngineInput) -> Emitter:
        """Returns an emitter of frames."""
        return TalkerEmitter(self._speech)

    def warmup_request(self) -> StageRequest:
        """Returns a request for a few frames of a reply of two tokens."""
        text = self._checkpoint.text
        prompt = [text.message_start, text.user, 0, text.message_start, text.assistant, 0]
        tensors = {
            "token_ids": torch.tensor([*prompt, 0, 0]),
            "prompt_tokens": torch.tensor([len(prompt)]),
        }
        return StageRequest(
            request_id="warmup",
            source=EdgeInput(tensors),
            sampling=SamplingDefaults(temperature=0.0, max_tokens=4, ignore_eos=True),
        )


class TalkerEmitter:
    """Publishes frames of codes, except the frame that ends the stream. Stateless."""

    def __init__(self, speech: SpeechFacts) -> None:
        self._speech = speech

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one engine step to one stage step."""
        frames = step.tensors.get("codes")
        tensors: dict[str, Array] = {}
        if frames is not None:
            # In numpy, because a small call into torch takes several microseconds, and this runs for every frame.
            codes = frames.numpy()
            audible = codes[codes[:, 0] < self._speech.codebook_size]
            if audible.shape[0]:
                tensors["codes"] = np.ascontiguousarray(audible, dtype=np.int64)
        made = StageStep.of(step)
        made.tensors = tensors
        return made


def build_component(config: StageConfig) -> Talker:
    """Build the talker of config.model.path. Raises ConfigurationError."""
    checkpoint, speech = read_speaking_checkpoint(config.model.path)
    table = EmbeddingTable(checkpoint.path, THINKER_EMBEDDING, torch_dtype(checkpoint.dtype))
    return Talker(checkpoint, speech, table, find_pace(speech, config))


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
        spoken = self._table.read(text)
        parts = [spoken[:_FRAME], self._speech_rows(*["padding"] * _PADDING, "start"), spoken[_FRAME:]]
        if self._ended:
            parts.append(self._speech_rows("end", "padding"))
        count = heard.shape[0]
        rows = spoken.new_empty(count + sum(part.shape[0] for part in parts), self._table.width)
        # The media of a long call are many MiB, so they are copied once.
        rows[:count][is_media] = media.to(rows.dtype)
        rows[:count][~is_media] = self._table.read(heard[~is_media])
        torch.cat(parts, out=rows[count:])
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
        prompt = TalkerPrompt(tokens, rows, positions, following - len(tokens))
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
    is_media: torch.Tensor, is_audio: torch.Tensor, media_positions: torch.Tensor, length: int
) -> tuple[torch.Tensor, int]:
    """Returns M-RoPE positions int64 [length, 3] of a prompt, and the position that follows.

    `is_media`, `is_audio`: bool [n], n <= length: which of the first n tokens stand for media, and which of these for
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
            begin += _stretches(is_audio[begin:end])[-1][0]
        else:
            positions[begin:end] = (torch.arange(count) + following)[:, None]
        following = int(positions[begin:end].max()) + 1
    return positions, following


def _stretches(kinds: torch.Tensor) -> list[tuple[int, int]]:
    """Returns the ranges [begin, end) of equal values in bool [n], n > 0."""
    borders = (torch.nonzero(kinds[1:] != kinds[:-1]).flatten() + 1).tolist()
    return list(pairwise([0, *borders, kinds.shape[0]]))
