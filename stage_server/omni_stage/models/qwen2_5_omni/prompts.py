"""A user's prompt to vLLM's: chat template, tokenizer, media."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from omni_stage.errors import ConfigurationError, InvalidMediaError, InvalidRequestError
from omni_stage.models.component import AudioPart, ChatMessage, ImagePart, TextPart, UserPrompt
from omni_stage.models.qwen2_5_omni.checkpoint import OmniCheckpoint
from omni_stage.models.qwen2_5_omni.resample import resample

SOUND_RATE_HZ = 16_000
"""What the audio encoder hears."""
MIN_SOUND_SAMPLES = 800
"""Shortest sound, 50 ms: below it the encoder has nothing left after its strides."""
MAX_ASPECT_RATIO = 200
"""Longest side of an image over its shortest; the image processor refuses more."""
ROLES = ("system", "user", "assistant")


class PromptBuilder:
    """Makes vLLM prompts with the checkpoint's tokenizer and chat template. Safe to use from several threads."""

    def __init__(self, tokenizer: Any, checkpoint: OmniCheckpoint) -> None:
        """Raises ConfigurationError if the tokenizer is not the checkpoint's."""
        self._tokenizer = tokenizer
        # A fast tokenizer refuses to be used while another thread changes its settings, which encoding may do.
        self._lock = threading.Lock()
        self._vocab_size = checkpoint.vocab_size
        self._placeholder_ids = frozenset(checkpoint.placeholder_ids)
        self._placeholders: list[str] = [
            token for item in checkpoint.placeholder_ids if (token := tokenizer.convert_ids_to_tokens(item))
        ]
        if len(self._placeholders) < len(checkpoint.placeholder_ids):
            # transformers makes an empty tokenizer of a directory without tokenizer files.
            raise ConfigurationError(
                f"the tokenizer in model.path {checkpoint.path} does not know the tokens that stand for media; "
                "the checkpoint must hold its own tokenizer files",
                field="model.path",
            )

    @classmethod
    def load(cls, checkpoint: OmniCheckpoint) -> PromptBuilder:
        """Read the tokenizer of the checkpoint. Raises ConfigurationError."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(
                str(checkpoint.path), local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ConfigurationError(
                f"no tokenizer can be loaded from model.path {checkpoint.path} ({type(error).__name__}); "
                "the checkpoint must hold its tokenizer files",
                field="model.path",
            ) from error
        if not tokenizer.chat_template:
            tokenizer.chat_template = _read_chat_template(checkpoint.path)
        return cls(tokenizer, checkpoint)

    def build(self, prompt: UserPrompt) -> dict[str, Any]:
        """vLLM's prompt: prompt_token_ids, or for media the text with placeholders and multi_modal_data.

        Raises InvalidRequestError, InvalidMediaError.
        """
        if prompt.token_ids is not None:
            return {"prompt_token_ids": self._check_ids(list(prompt.token_ids))}
        if prompt.text is not None:
            return {"prompt_token_ids": self._encode(self._check_text(prompt.text, "start.text"), "start.text")}
        if prompt.messages is not None:
            return self._build_chat(prompt.messages)
        raise InvalidRequestError("the prompt is empty: give text, chat or token ids", field="start.input")

    def _build_chat(self, messages: Sequence[ChatMessage]) -> dict[str, Any]:
        if not messages:
            raise InvalidRequestError("the conversation has no message; give at least one", field="start.chat")
        if not self._tokenizer.chat_template:
            raise InvalidRequestError(
                "this checkpoint has no chat template; send the prompt as text", field="start.chat"
            )
        images = [part.image for message in messages for part in message.parts if isinstance(part, ImagePart)]
        sounds = [part for message in messages for part in message.parts if isinstance(part, AudioPart)]
        with self._lock:
            text = self._tokenizer.apply_chat_template(
                [self._describe_message(index, message) for index, message in enumerate(messages)],
                tokenize=False,
                add_generation_prompt=True,
            )
        media: dict[str, Any] = {}
        if images:
            media["image"] = [_check_image(image) for image in images]
        if sounds:
            media["audio"] = [(prepare_sound(sound), SOUND_RATE_HZ) for sound in sounds]
        if not media:
            return {"prompt_token_ids": self._encode(text, "start.chat")}
        return {"prompt": text, "multi_modal_data": media}

    def _describe_message(self, index: int, message: ChatMessage) -> dict[str, Any]:
        field = f"start.chat.messages[{index}]"
        if message.role not in ROLES:
            raise InvalidRequestError(f"{field}.role: must be one of {', '.join(ROLES)}", field=f"{field}.role")
        content: list[dict[str, str]] = []
        for part in message.parts:
            if isinstance(part, TextPart):
                content.append({"type": "text", "text": self._check_text(part.text, f"{field}.parts")})
            else:
                content.append({"type": "image" if isinstance(part, ImagePart) else "audio"})
        return {"role": message.role, "content": content}

    def _check_text(self, text: str, field: str) -> str:
        # A placeholder in text would be counted as a medium that nobody sent.
        for placeholder in self._placeholders:
            if placeholder in text:
                raise InvalidRequestError(
                    f"{field}: holds {placeholder}, which stands for a medium; send media as parts of a chat message",
                    field=field,
                )
        return text

    def _check_ids(self, ids: list[int]) -> list[int]:
        field = "start.token_ids"
        if not ids:
            raise InvalidRequestError(f"{field}: the prompt has no tokens; give at least one", field=field)
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

    def _encode(self, text: str, field: str) -> list[int]:
        with self._lock:
            ids = list(self._tokenizer(text)["input_ids"])
        if not ids:
            raise InvalidRequestError(f"{field}: the prompt has no tokens; give at least one", field=field)
        return ids


def prepare_sound(sound: AudioPart) -> np.ndarray:
    """float32 [samples] at 16 kHz. Raises InvalidMediaError if it is too short."""
    samples = resample(sound.samples, sound.sampling_rate_hz, SOUND_RATE_HZ)
    if samples.size < MIN_SOUND_SAMPLES:
        raise InvalidMediaError(
            f"start.chat: a sound is shorter than {1000 * MIN_SOUND_SAMPLES // SOUND_RATE_HZ} ms; send a longer one",
            field="start.chat",
            limit=f"{1000 * MIN_SOUND_SAMPLES // SOUND_RATE_HZ} ms",
        )
    return samples


def _check_image(image: Any) -> Any:
    shortest, longest = sorted(image.size)
    if shortest < 1 or longest > MAX_ASPECT_RATIO * shortest:
        raise InvalidMediaError(
            f"start.chat: an image is more than {MAX_ASPECT_RATIO} times as long as wide; crop it",
            field="start.chat",
            limit=MAX_ASPECT_RATIO,
        )
    return image.convert("RGB")


def _read_chat_template(path: Path) -> str | None:
    """The template in chat_template.json, where older processors kept it apart from the tokenizer."""
    try:
        template = json.loads((path / "chat_template.json").read_text(encoding="utf-8"))["chat_template"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return template if isinstance(template, str) else None
