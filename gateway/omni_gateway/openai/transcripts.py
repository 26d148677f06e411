"""Turns what a model heard into OpenAI's forms of a transcript. Pure functions."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from omni_proto.client import TimedText

PLAIN: Final = "text/plain; charset=utf-8"
TASKS: Final = {
    "transcribe": "Write down the words that are spoken in the audio, exactly, in their own language. "
    "Write nothing else.",
    "translate": "Translate the words that are spoken in the audio into English. Write only the translation.",
}
"""What a model that is no transcriber is asked, by task."""


def build_instruction(task: str, language: str, prompt: str) -> str:
    """Returns the text that asks a model which follows instructions for a transcript."""
    spoken = f" The language is {language}." if language else ""
    context = f"\nWhat was said before, or names that may occur: {prompt}" if prompt else ""
    return f"{TASKS[task]}{spoken}{context}"


def build_options(task: str, language: str, prompt: str, *, timestamps: bool) -> dict[str, Any]:
    """Returns the template arguments for a stage that transcribes (TextAbilities.transcribes)."""
    given = {"language": language, "prompt": prompt}
    return {
        "task": task,
        **{name: value for name, value in given.items() if value},
        **({"timestamps": True} if timestamps else {}),
    }


def begin_chunks(task: str, id: str, model: str, created: int) -> dict[str, Any]:
    """Returns what vLLM's chunks of one stream have in common. created: seconds since the epoch."""
    name, prefix = {"transcribe": ("transcription", "trsc"), "translate": ("translation", "trsl")}[task]
    return {"id": f"{prefix}-{id}", "object": f"{name}.chunk", "created": created, "model": model}


def close_segments(text: str, segments: Sequence[TimedText]) -> list[TimedText]:
    """Returns the segments, of which the last one also has what follows it in the text."""
    rest = text[sum(len(one.text) for one in segments) :]
    if not segments or not rest:
        return list(segments)
    return [*segments[:-1], TimedText(segments[-1].text + rest, segments[-1].segment)]


def describe_segments(segments: Sequence[TimedText], temperature: float) -> list[dict[str, Any]]:
    """Returns OpenAI's segments. What the stage does not state is empty or 0: OpenAI's types have no null here, so that
    clients compare these numbers, and typed ones refuse the answer."""
    return [
        {
            "id": number,
            "seek": 0,
            "start": one.segment.start_s,
            "end": one.segment.end_s,
            "text": one.text,
            "tokens": [],
            "temperature": temperature,
            "avg_logprob": 0.0,
            "compression_ratio": _compression_ratio(one.text),
            "no_speech_prob": 0.0,
        }
        for number, one in enumerate(segments)
    ]


def _compression_ratio(text: str) -> float:
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def write_srt(segments: Sequence[TimedText]) -> str:
    """Returns the segments as SubRip subtitles."""
    return "".join(
        f"{number}\n{_clock(one.segment.start_s, ',')} --> {_clock(one.segment.end_s, ',')}\n{_cue(one.text)}\n\n"
        for number, one in enumerate(segments, 1)
    )


def write_vtt(segments: Sequence[TimedText]) -> str:
    """Returns the segments as WebVTT subtitles."""
    return "WEBVTT\n\n" + "".join(
        f"{_clock(one.segment.start_s, '.')} --> {_clock(one.segment.end_s, '.')}\n{_cue(one.text)}\n\n"
        for one in segments
    )


def _cue(text: str) -> str:
    """Returns the text of a cue: without empty lines, which end it, and without the arrow of times."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip()).replace("-->", "->")


def _clock(seconds: float, point: str) -> str:
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}{point}{milliseconds:03}"


class Trimmer:
    """Joins streamed pieces without the white space around the whole text, which models that transcribe begin with."""

    def __init__(self) -> None:
        self.text = ""
        """What was passed on."""
        self._held = ""

    def add(self, piece: str) -> Iterator[str]:
        """Yields the text that may be sent, if there is any."""
        piece = self._held + piece
        if not self.text:
            piece = piece.lstrip()
        sent = piece.rstrip()
        self._held = piece[len(sent) :]
        if sent:
            self.text += sent
            yield sent
