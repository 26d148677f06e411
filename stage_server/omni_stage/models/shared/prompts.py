"""Turns a user's prompt into vLLM's prompt: chat template, tokenizer, media."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from omni_proto.media_headers.video import FRAMES_PER_SECOND
from omni_stage.decoding.resample import resample
from omni_stage.errors import ConfigurationError, InvalidMediaError, InvalidRequestError, in_field
from omni_stage.exchange import GivenReply, ReplyTokens
from omni_stage.models.component import AudioPart, ChatMessage, ImagePart, MediaPart, TextPart, UserPrompt, VideoPart
from omni_stage.models.shared.text.chat_template import ChatTemplate
from omni_stage.models.shared.text.encoder import TextEncoder
from omni_stage.models.shared.text.tokenizer import load_tokenizer, read_chat_template

AUDIO_RATE_HZ = 16_000
"""Sample rate of the audio encoder's input."""
MINIMUM_AUDIO_SAMPLES = 800
"""Shortest audio, 50 ms. From shorter audio, the encoder's strides leave no output."""
MAX_ASPECT_RATIO = 200
"""Largest ratio of an image's longest side to its shortest; the image processor refuses more."""
ROLES = ("system", "user", "assistant")


_KINDS = {AudioPart: "audio", ImagePart: "image", VideoPart: "video"}
"""In the order of PromptFacts.placeholder_ids."""


class PromptFacts(Protocol):
    """The facts of a checkpoint on which a prompt depends."""

    @property
    def path(self) -> Path:
        """The checkpoint's directory."""
        ...

    @property
    def vocab_size(self) -> int:
        """All token ids are below this."""
        ...

    @property
    def placeholder_ids(self) -> tuple[int, ...]:
        """Token ids that stand for audio, an image and a video."""
        ...


class PromptBuilder:
    """Makes vLLM prompts with the checkpoint's tokenizer and chat template. Safe to use from several threads."""

    def __init__(
        self,
        tokenizer: Any,
        checkpoint: PromptFacts,
        *,
        max_audio_samples: int,
        speech_system_prompt: str = "",
        speech_needs_chat: bool = False,
    ) -> None:
        """`max_audio_samples`: length of the longest audio, at AUDIO_RATE_HZ.

        The other two settings apply only if the reply is to be spoken. `speech_system_prompt`: the system message for a
        chat that has none. `speech_needs_chat`: whether to turn plain text into a user's message, because the talker
        reads the tokens that mark messages. Raises ConfigurationError if the tokenizer does not belong to the
        checkpoint.
        """
        self._tokenizer = tokenizer
        self._speech_system_prompt = speech_system_prompt
        self._speech_needs_chat = speech_needs_chat
        self._encoder = TextEncoder(tokenizer)
        self._template = ChatTemplate(tokenizer)
        self._vocab_size = checkpoint.vocab_size
        self._placeholder_ids = frozenset(checkpoint.placeholder_ids)
        self._placeholders: list[str] = [
            token for item in checkpoint.placeholder_ids if (token := tokenizer.convert_ids_to_tokens(item))
        ]
        if len(self._placeholders) < len(checkpoint.placeholder_ids):
            # transformers returns an empty tokenizer for a directory without tokenizer files.
            raise ConfigurationError(
                f"the tokenizer in model.path {checkpoint.path} does not know the tokens that stand for media; "
                "the checkpoint must hold its own tokenizer files",
                field="model.path",
            )
        self._max_audio_samples = max_audio_samples

    @classmethod
    def load(cls, checkpoint: PromptFacts, **settings: Any) -> PromptBuilder:
        """Read the tokenizer of the checkpoint; `settings`: the constructor's keywords. Raises ConfigurationError."""
        tokenizer = load_tokenizer(checkpoint.path)
        if not tokenizer.chat_template:
            tokenizer.chat_template = read_chat_template(checkpoint.path)
        return cls(tokenizer, checkpoint, **settings)

    @property
    def end_token_id(self) -> int | None:
        """Id of the tokenizer's end-of-text token, if it names one."""
        token_id = self._tokenizer.eos_token_id
        return None if token_id is None else int(token_id)

    @property
    def chars_per_token(self) -> int | None:
        """See TextEncoder."""
        return self._encoder.chars_per_token

    def build(
        self, prompt: UserPrompt, *, speaks: bool = False, reply: ReplyTokens | None = None, maximum: int | None = None
    ) -> dict[str, Any]:
        """Returns vLLM's prompt: prompt_token_ids, or for media the text with placeholders and multi_modal_data.

        `speaks`: whether the reply is to be spoken; see the constructor. If it is not, only the chat template decides
        whether to add a system message, and plain text is not changed. Token ids are never changed.
        `reply`: a given reply, whose tokens end the prompt. `maximum`: the number of tokens that the engine takes.
        Raises InvalidRequestError, InvalidMediaError, PromptTooLongError.
        """
        built = self._build(prompt, speaks, maximum)
        if reply is None:
            return built
        # This also works with media, because vLLM finds their placeholders in token ids as well as in text.
        text = built.pop("prompt", None)
        ids = built["prompt_token_ids"] if text is None else self._encode(text, maximum, "start.chat")
        return {**built, "prompt_token_ids": [*ids, *reply.token_ids]}

    def encode_reply(
        self, reply: GivenReply, end_token_ids: Sequence[int], *, maximum: int | None = None
    ) -> ReplyTokens:
        """Returns the tokens of a given reply. If the reply is given as ids, a final end-of-text id is dropped.

        If it is given as text, names of special tokens are tokenized like any other text. `maximum`: as for `build`.
        Raises InvalidRequestError, PromptTooLongError.
        """
        if reply.token_ids is None:
            text = reply.text or ""
            return ReplyTokens(tuple(self._encoder.encode_plain(text, maximum, "start.reply")), text)
        field = "start.reply.token_ids"
        ids = self._check_ids(list(reply.token_ids), field)
        if ids[-1] in {*end_token_ids, self.end_token_id}:
            ids = ids[:-1]
        if not ids:
            raise InvalidRequestError("the reply holds nothing but its end; leave the reply out", field=field)
        return ReplyTokens(tuple(ids), self.decode(ids))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of token ids, without special tokens."""
        return self._encoder.decode(token_ids)

    def _build(self, prompt: UserPrompt, speaks: bool, maximum: int | None) -> dict[str, Any]:
        if prompt.token_ids is not None:
            return {"prompt_token_ids": self._check_ids(list(prompt.token_ids), "start.token_ids")}
        if prompt.text is not None and speaks and self._speech_needs_chat:
            self._check_text(prompt.text, "start.text")
            chat = UserPrompt(messages=[ChatMessage("user", [TextPart(prompt.text)])])
            return self._build_chat(chat, speaks, maximum, "start.text")
        if prompt.text is not None:
            text = self._check_text(prompt.text, "start.text")
            return {"prompt_token_ids": self._encode(text, maximum, "start.text")}
        if prompt.messages is not None:
            return self._build_chat(prompt, speaks, maximum, "start.chat")
        raise InvalidRequestError("the prompt is empty: give text, chat or token ids", field="start.input")

    def _build_chat(self, prompt: UserPrompt, speaks: bool, maximum: int | None, field: str) -> dict[str, Any]:
        messages = prompt.messages
        if not messages:
            raise InvalidRequestError("the conversation has no message; give at least one", field="start.chat")
        if not self._template.exists:
            raise InvalidRequestError(
                "this checkpoint has no chat template; send the prompt as text", field="start.chat"
            )
        placed = [
            (f"start.chat.messages[{index}].parts[{place}]", part)
            for index, message in enumerate(messages)
            for place, part in enumerate(message.parts)
        ]
        parts = [part for _, part in placed]
        images = [(f"{path}.image", part) for path, part in placed if isinstance(part, ImagePart)]
        videos = [part for part in parts if isinstance(part, VideoPart)]
        clips = [
            (f"{path}.{_KINDS[type(part)]}", clip) for path, part in placed if (clip := _audio_of(part)) is not None
        ]
        described = [self._describe_message(index, message) for index, message in enumerate(messages)]
        if speaks and self._speech_system_prompt and messages[0].role != "system":
            described.insert(0, {"role": "system", "content": [{"type": "text", "text": self._speech_system_prompt}]})
        text = self._template.render(prompt, described)
        self._check_places(text, [sum(isinstance(part, kind) for part in parts) for kind in _KINDS])
        text = self._mark_heard(text, [_audio_of(video) is not None for video in videos])
        media: dict[str, Any] = {}
        settings: dict[str, Any] = {}
        if videos:
            media["video"] = [video.frames for video in videos]
            settings = {"mm_processor_kwargs": {"fps": float(FRAMES_PER_SECOND), "do_sample_frames": False}}
        if images:
            media["image"] = [_check_image(part.image, field) for field, part in images]
        if clips:
            media["audio"] = [
                (prepare_audio(clip, self._max_audio_samples, field), AUDIO_RATE_HZ) for field, clip in clips
            ]
        if not media:
            return {"prompt_token_ids": self._encode(text, maximum, field)}
        self._encoder.check(text, maximum, field)
        given: dict[str, Sequence[MediaPart]] = {
            "video": videos,
            "image": [part for _, part in images],
            "audio": [clip for _, clip in clips],
        }
        # vLLM names processed media by these, and hashes only the contents of media without a name.
        names = {kind: [f"{kind}-{part.key}" if part.key else None for part in given[kind]] for kind in media}
        return {"prompt": text, "multi_modal_data": media, "multi_modal_uuids": names, **settings}

    def _mark_heard(self, text: str, heard: Sequence[bool]) -> str:
        """Returns the text, with an audio placeholder inserted after the placeholder of each video marked in `heard`.

        `heard` marks the videos whose audio the model reads. See vllm_adapter/media/video_audio.py.
        """
        if not any(heard):
            return text
        audio, video = self._placeholders[0], self._placeholders[-1]
        begin, *rest = text.split(video)
        return begin + "".join(
            video + (audio if has_audio else "") + piece for has_audio, piece in zip(heard, rest, strict=True)
        )

    def _describe_message(self, index: int, message: ChatMessage) -> dict[str, Any]:
        field = f"start.chat.messages[{index}]"
        if message.role not in ROLES:
            raise InvalidRequestError(f"role must be one of {', '.join(ROLES)}", field=f"{field}.role")
        content: list[dict[str, str]] = []
        for place, part in enumerate(message.parts):
            if isinstance(part, TextPart):
                content.append({"type": "text", "text": self._check_text(part.text, f"{field}.parts[{place}]")})
            else:
                content.append({"type": _KINDS[type(part)]})
        return {"role": message.role, "content": content}

    def _check_text(self, text: str, field: str) -> str:
        # vLLM would count a placeholder in the text as a medium, which the client did not send.
        for placeholder in self._placeholders:
            if placeholder in text:
                raise InvalidRequestError(
                    f"the text holds {placeholder}, which stands for a medium; send media as parts of a chat message",
                    field=field,
                )
        return text

    def _check_places(self, text: str, given: Sequence[int]) -> None:
        # Adjacent parts of text may form a placeholder together, and a chat template may leave media out.
        for placeholder, count in zip(self._placeholders, given, strict=True):
            if text.count(placeholder) != count:
                raise InvalidRequestError(
                    f"with the checkpoint's chat template, the prompt holds {placeholder} "
                    f"{text.count(placeholder)} times for {count} media of this kind; text parts must not form "
                    f"{placeholder} together",
                    field="start.chat",
                )

    def _check_ids(self, ids: list[int], field: str) -> list[int]:
        if not ids:
            raise InvalidRequestError(f"{field}: has no tokens; give at least one", field=field)
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise InvalidRequestError(
                f"{field}: every id must be at least 0 and below {self._vocab_size}",
                field=field,
                limit=self._vocab_size,
            )
        if self._placeholder_ids.intersection(ids):
            raise InvalidRequestError(
                f"{field}: holds an id that stands for a medium; send media as parts of a chat message", field=field
            )
        return ids

    def _encode(self, text: str, maximum: int | None, field: str) -> list[int]:
        ids = self._encoder.encode(text, maximum, field)
        if not ids:
            raise InvalidRequestError(f"{field}: the prompt has no tokens; give at least one", field=field)
        return ids


def prepare_audio(clip: AudioPart, max_samples: int, field: str) -> np.ndarray:
    """Returns float32 [samples] at 16 kHz.

    Raises InvalidMediaError, of the given field, if these are fewer than MINIMUM_AUDIO_SAMPLES or more than
    max_samples.
    """
    with in_field(field):
        check_audio_length(clip.samples.size * AUDIO_RATE_HZ / clip.sampling_rate_hz, max_samples)
    samples = resample(clip.samples, clip.sampling_rate_hz, AUDIO_RATE_HZ)
    if samples.size < MINIMUM_AUDIO_SAMPLES:
        raise InvalidMediaError(
            f"the audio is shorter than {1000 * MINIMUM_AUDIO_SAMPLES // AUDIO_RATE_HZ} ms; send longer audio",
            field=field,
            limit=f"{1000 * MINIMUM_AUDIO_SAMPLES // AUDIO_RATE_HZ} ms",
        )
    return samples


def check_audio_length(samples: float, max_samples: int) -> None:
    """Refuse audio of more samples, at AUDIO_RATE_HZ, than the model reads in one clip. Raises InvalidMediaError, whose
    field the caller adds (in_field)."""
    if samples > max_samples:
        limit_s = max_samples / AUDIO_RATE_HZ
        # The feature extractor would cut off the rest silently.
        raise InvalidMediaError(
            f"the audio is longer than {limit_s:g} s, the most that the model reads in one clip; send it in parts",
            limit=f"{limit_s:g} s",
        )


def check_aspect(width: int, height: int) -> None:
    """Refuse an image of extreme aspect ratio. Raises InvalidMediaError, whose field the caller adds (in_field)."""
    shortest, longest = sorted((width, height))
    if shortest < 1 or longest > MAX_ASPECT_RATIO * shortest:
        raise InvalidMediaError(
            f"the picture is more than {MAX_ASPECT_RATIO} times as long as wide; crop it",
            limit=MAX_ASPECT_RATIO,
        )


def _audio_of(part: Any) -> AudioPart | None:
    """Returns the audio that the model reads from a message part; None for a video whose audio is too short."""
    if isinstance(part, VideoPart):
        is_heard = part.audio is not None and part.audio.samples.size >= MINIMUM_AUDIO_SAMPLES
        return part.audio if is_heard else None
    return part if isinstance(part, AudioPart) else None


def _check_image(image: Any, field: str) -> Any:
    with in_field(field):
        check_aspect(*image.size)
    # Pillow's convert would copy even an RGB image.
    return image if image.mode == "RGB" else image.convert("RGB")
