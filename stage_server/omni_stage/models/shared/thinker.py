"""Base class of both Omni families' thinkers: engine arguments, prompts with media, and checks of the voice."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from omni_proto.pipeline.components import ComponentFacts
from omni_proto.stage_config import SamplingDefaults
from omni_proto.tensors import TensorSchema
from omni_stage.errors import InvalidRequestError
from omni_stage.models.component import EngineInput, EngineStep, MediaCost, StageRequest, UserPrompt
from omni_stage.models.component.request import pick_voice
from omni_stage.models.shared.media_cost import MediaCosts
from omni_stage.models.shared.prompts import AUDIO_RATE_HZ, MAX_ASPECT_RATIO, PromptBuilder
from omni_stage.vllm_adapter.scheduling.playback import PACE_KEY

MAX_TOKENS: Final = 1024
"""thinker_max_new_tokens of transformers' generate(), in both families."""
ROWS_CACHE_BYTES: Final = 256 << 20
"""Bytes of published rows to keep for cached prefixes, where neither engineArgs nor the byte budget set a size."""
_WARMUP_TOKENS: Final = 4
_KINDS: Final = ("image", "audio", "video")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkerSettings:
    """Settings of a thinker, from its checkpoint and its place in the pipeline."""

    feeds: bool
    """Whether another stage reads this stage's rows."""
    max_media: int
    """Maximum number of images in a request; also the maximum number of audio clips and of videos."""
    default_sampling: SamplingDefaults
    end_token_ids: tuple[int, ...]
    """Tokens that end the text."""
    media_costs: MediaCosts
    pace: Mapping[str, Any]
    """How fast speech consumes the thinker's rows: fields of scheduling.playback.Pace."""
    known_voices: Sequence[str] = ()
    """Voices of the stages downstream, so that an unknown voice is refused before any text is generated."""


class OmniThinker:
    """A Component without an emitter and without its family's facts. A subclass adds both."""

    facts: ComponentFacts
    input_schema = None
    voices: Sequence[str] = ()
    audio_rate_hz = AUDIO_RATE_HZ
    max_aspect_ratio = MAX_ASPECT_RATIO

    def __init__(
        self,
        prompts: PromptBuilder,
        settings: ThinkerSettings,
        *,
        output_schema: TensorSchema,
        engine: tuple[str, str, Callable[[Any], Any]],
        warmup_token_ids: Sequence[int],
    ) -> None:
        """`engine`: vLLM's arguments model, dtype and hf_overrides; `warmup_token_ids`: any prompt without media."""
        self.output_schema = output_schema
        self.default_sampling = settings.default_sampling
        self.known_voices = settings.known_voices
        self.row_plays_s: float | None = 1 / settings.pace["tokens_per_second"] if settings.pace else None
        self._prompts = prompts
        self._settings = settings
        self._engine = engine
        self._warmup_token_ids = warmup_token_ids

    @property
    def chars_per_token(self) -> int | None:
        """See KnowsTokens."""
        return self._prompts.chars_per_token

    def engine_kwargs(self) -> dict[str, Any]:
        """Returns arguments for our subclass of vLLM's thinker. Rows are captured only if another stage reads them."""
        model, dtype, overrides = self._engine
        maximum = self._settings.max_media
        omni = {"capture_rows": True, "capture_mrope": True, "rows_cache_bytes": ROWS_CACHE_BYTES}
        captures = {"omni": omni, PACE_KEY: self._settings.pace}
        return {
            "model": model,
            "dtype": dtype,
            "hf_overrides": overrides,
            "limit_mm_per_prompt": {kind: maximum if kind in self.facts.media else 0 for kind in _KINDS},
            "additional_config": captures if self._settings.feeds else {},
        }

    def prepare(self, request: StageRequest) -> EngineInput:
        """Build vLLM's prompt with the chat template, the tokenizer and the media. Embeddings are passed unchanged.

        If a later stage speaks the reply, the prompt is extended as speech requires (PromptBuilder).
        """
        if not isinstance(request.source, UserPrompt):
            raise InvalidRequestError(f"component {self.facts.id} reads a prompt, not tensors of another stage")
        if self.known_voices:
            pick_voice(request.voice, self.known_voices)
        ends = () if request.sampling.ignore_eos else self._settings.end_token_ids
        if request.source.prompt_embeds is not None:
            return EngineInput(prompt={}, prompt_embeds=request.source.prompt_embeds, stop_token_ids=ends)
        reply = request.source.reply
        ends_text, maximum = self._settings.end_token_ids, request.max_prompt_tokens
        tokens = None if reply is None else self._prompts.encode_reply(reply, ends_text, maximum=maximum)
        prompt = self._prompts.build(request.source, speaks=request.want_tensors, reply=tokens, maximum=maximum)
        if request.want_tensors and request.source.token_ids is not None:
            self.check_spoken_ids(prompt["prompt_token_ids"])
        return EngineInput(prompt=prompt, stop_token_ids=ends, reply=tokens)

    def spoken_tokens(self, request: StageRequest) -> SpokenTokens:
        """Returns the object that counts how many tokens of the request's reply may be spoken."""
        return SpokenTokens(request.sampling.stop, self._prompts.decode)

    def check_spoken_ids(self, token_ids: Sequence[int]) -> None:
        """Accept any token ids. A subclass raises InvalidRequestError for ids whose reply cannot be spoken."""

    @property
    def max_audio_samples(self) -> int:
        """See TakesMedia."""
        return self._settings.media_costs.max_samples

    def image_cost(self, width: int, height: int) -> MediaCost:
        """See TakesMedia."""
        return self._settings.media_costs.image(width, height)

    def frame_size(self, width: int, height: int, frames: int) -> tuple[int, int]:
        """See TakesVideo."""
        return self._settings.media_costs.frame_size(width, height, frames)

    def video_cost(self, width: int, height: int, frames: int) -> MediaCost:
        """See TakesVideo."""
        return self._settings.media_costs.video(width, height, frames)

    def audio_cost(self, samples: int) -> MediaCost:
        """See TakesMedia."""
        return self._settings.media_costs.audio(samples)

    def warmup_request(self) -> StageRequest:
        """Returns a request for a few tokens, with their rows if another stage reads these."""
        return StageRequest(
            request_id="warmup",
            source=UserPrompt(token_ids=self._warmup_token_ids),
            sampling=SamplingDefaults(temperature=0.0, max_tokens=_WARMUP_TOKENS, ignore_eos=True),
            want_tensors=self._settings.feeds,
        )


_BYTES_OF_A_CHARACTER: Final = 4


class SpokenTokens:
    """Counts the tokens of one request's reply that may be spoken.

    vLLM cuts a stop string from the text, but the string's tokens have been sampled by then. So the newest tokens are
    withheld: as many as the longest stop string may have.
    """

    def __init__(self, stops: Sequence[str] | None, decode: Callable[[Sequence[int]], str]) -> None:
        """`stops`: the request's stop strings; `decode` returns the text of token ids, without special tokens."""
        self._stops = frozenset(stops or ())
        self._decode = decode
        # A token of text has at least one byte, so a stop string has at most as many tokens as bytes.
        self._withheld = max((len(stop.encode()) for stop in self._stops), default=0)
        self._token_ids: list[int] = []
        self._length = 0

    def count(self, step: EngineStep) -> int:
        """Add a step. Returns how many of the reply's tokens, from its first on, may be spoken by now."""
        if not self._stops:
            self._length += len(step.token_ids)
            return self._length
        self._token_ids.extend(step.token_ids)
        self._length += len(step.text)
        tokens = len(self._token_ids)
        if step.finish_reason is None:
            return max(0, tokens - self._withheld)
        if step.stop_reason not in self._stops:
            return tokens
        first = max(0, tokens - self._withheld)
        # By halving, because each decoding takes as long as the reply.
        long_enough = bisect_left(range(first, tokens), self._length, key=lambda count: len(self._text(count)))
        # The text of a part of a character may be longer than the character.
        near = max(first, first + long_enough - _BYTES_OF_A_CHARACTER)
        return next((count for count in range(near, tokens) if self._covers_text(count)), tokens)

    def _text(self, count: int) -> str:
        return self._decode(self._token_ids[:count])

    def _covers_text(self, count: int) -> bool:
        text = self._text(count)
        # The replacement character stands for a character whose last bytes are in the next token.
        return len(text) >= self._length and not text.endswith("\N{REPLACEMENT CHARACTER}")
