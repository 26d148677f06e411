"""Turns the events of a call into OpenAI's chat completion: chunks of a stream, or one object. Pure functions."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from omni_gateway.client_paths import NO_PATHS, ClientPaths
from omni_proto.client import LENGTH, Accepted, StageFinished, Summary, ToolCall, ToolCallDelta

NOTES_HEADER: Final = "x-omnipipeline-notes"
"""Header of an answer that is not streamed: its notes, with "; " between them."""


@dataclass(slots=True)
class ChatAnswer:
    """Builds one answer. The fields hold what all chunks share, options of the request, and what the stages have
    reported."""

    id: str
    model: str
    created: int
    """Seconds since the epoch."""
    audio_expires_at: int = 0
    """Seconds since the epoch; 0 if the answer contains no audio."""
    include_usage: bool = False
    include_stages: bool = False
    finish_reason: str = "stop"
    """OpenAI's finish reason of the answer; see `end`."""
    calls_tools: bool = False
    """Whether the model has called a tool."""
    named_tool: bool = False
    """Whether the request named the tool to call. OpenAI's finish reason is then "stop" and not "tool_calls"."""
    one_call: bool = False
    """Whether the answer contains only the first call of a tool."""
    paths: ClientPaths = NO_PATHS
    """The client's names of the request's fields."""
    notes: list[str] = field(default_factory=list)
    """What the client should know about its request, such as damage of a medium."""

    def note(self, item: StageFinished) -> None:
        """Keep a stage's notes, with the client's names of the fields."""
        self.notes += map(self.paths.translate_text, item.notes)

    def end(self, cut_stages: Sequence[str]) -> None:
        """Note how the answer ended. cut_stages: its stages that reached their maximum length, so that text or speech
        is missing."""
        self.finish_reason = finish_reason(cut_stages)

    @property
    def speaks(self) -> bool:
        """Whether the answer contains audio, so that its text is the transcript."""
        return bool(self.audio_expires_at)

    @property
    def audio_id(self) -> str:
        """Id of the audio."""
        return f"audio_{self.id.removeprefix('chatcmpl-')}"

    def first(self) -> dict[str, Any]:
        """Returns the chunk that opens a stream. As with OpenAI, only this chunk has the id of the audio: clients that
        collect a stream join the texts of equal fields."""
        delta: dict[str, Any] = {"role": "assistant", "content": None if self.speaks else ""}
        if self.speaks:
            delta["audio"] = {"id": self.audio_id}
        return self._chunk(delta)

    def text(self, text: str) -> dict[str, Any]:
        """Returns a chunk with a piece of text."""
        return self._chunk({"audio": {"transcript": text}} if self.speaks else {"content": text})

    def tool_call(self, piece: ToolCallDelta) -> dict[str, Any]:
        """Returns a chunk with a piece of a tool call. Only the first piece of a call has the id, type and name."""
        self.calls_tools = True
        call: dict[str, Any] = {"index": piece.index, "function": {"arguments": piece.arguments}}
        if piece.id:
            call |= {"id": piece.id, "type": "function"}
            call["function"] = {"name": piece.name, "arguments": piece.arguments}
        return self._chunk({"tool_calls": [call]})

    def reasoning(self, text: str) -> dict[str, Any]:
        """Returns a chunk with a piece of reasoning, under vLLM's field name."""
        return self._chunk({"reasoning": text})

    def heard(self, text: str) -> dict[str, Any]:
        """Returns a chunk with words that the model heard from the user, which are no part of the answer."""
        return self._chunk({"input_transcript": text})

    def audio(self, data: str) -> dict[str, Any]:
        """Returns a chunk with a piece of encoded audio, in base64; see Base64Pieces."""
        return self._chunk({"audio": {"data": data}})

    def last(self) -> dict[str, Any]:
        """Returns the chunk with the finish reason."""
        delta = {"audio": {"expires_at": self.audio_expires_at}} if self.speaks else {}
        return {**self._chunk(delta, self._finish()), **self._noted()}

    def usage(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the chunk with the usage, which ends a stream if the request asks for it."""
        return {**self._chunk({}), "choices": [], "usage": dict(usage)}

    def stage(self, item: Accepted | StageFinished) -> dict[str, Any]:
        """Returns the chunk for a stage that accepted or finished the request; see `stage_facts`."""
        return {**self._chunk({}), "choices": [], "stage": stage_facts(item)}

    def whole(
        self,
        text: str,
        audio: bytes | None,
        usage: Mapping[str, Any],
        *,
        calls: Sequence[ToolCall] = (),
        reasoning: str = "",
        heard: str = "",
    ) -> dict[str, Any]:
        """Returns the complete answer as one object."""
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if heard:
            message["input_transcript"] = heard
        if reasoning:
            message["reasoning"] = reasoning
        if calls:
            self.calls_tools = True
            message["content"] = text or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls[: 1 if self.one_call else None]
            ]
        if audio is not None:
            message["content"] = None
            message["audio"] = {
                "id": self.audio_id,
                "data": base64.b64encode(audio).decode(),
                "expires_at": self.audio_expires_at,
                "transcript": text,
            }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish()}
        return {**self._head("chat.completion"), "choices": [choice], "usage": dict(usage), **self._noted()}

    def _noted(self) -> dict[str, Any]:
        return {"notes": list(self.notes)} if self.notes else {}

    def _finish(self) -> str:
        chose_tools = self.calls_tools and not self.named_tool
        return "tool_calls" if chose_tools and self.finish_reason == "stop" else self.finish_reason

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self.include_usage else chunk

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def finish_reason(cut_stages: Sequence[str]) -> str:
    """Returns OpenAI's finish reason of an answer: "length" if a stage that it needed reached its maximum length."""
    return LENGTH if cut_stages else "stop"


def read_usage(*summaries: Summary, answering: str = "") -> dict[str, Any]:
    """Returns OpenAI's usage of one or more requests together.

    Prompt tokens, and the cached ones among them, are those of the stage that answers; empty: the entry stage.
    Completion tokens are those of all stages: codec tokens are audio tokens, all others text tokens. Audio that was
    made without codec tokens counts none, so `audio_tokens` is then left out.
    """
    prompt = cached = completion = codec = samples = 0
    for summary in summaries:
        for outcome in summary.stages:
            usage = outcome.usage
            if outcome.stage == (answering or summary.stage):
                prompt += usage.prompt_tokens
                cached += usage.cached_tokens
            completion += usage.completion_tokens
            codec += usage.codec_tokens
            samples += usage.audio_samples
    details = {"audio_tokens": codec} if codec or not samples else {}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {**details, "text_tokens": completion - codec},
    }


def stage_facts(item: Accepted | StageFinished) -> dict[str, Any]:
    """Returns a stage's report about a request: name, event, and either accepted_unix_ms or finish_reason and timings.

    `timings` has accepted_unix_ms (wall clock), and the other fields of StageTimings except step_ns: named without _ns,
    in ms since the stage accepted the request. Events that did not happen are left out.
    """
    if isinstance(item, Accepted):
        return {"name": item.stage, "event": "accepted", "accepted_unix_ms": item.accepted_unix_ns / 1e6}
    times = item.timings
    timings: dict[str, Any] = {
        name.removesuffix("_ns"): round(value / 1e6, 3)
        for name, value in asdict(times).items()
        if name not in ("accepted_unix_ns", "step_ns") and value
    }
    return {
        "name": item.stage,
        "event": "finished",
        "finish_reason": item.finish_reason,
        "timings": {"accepted_unix_ms": times.accepted_unix_ns / 1e6, **timings},
    }
