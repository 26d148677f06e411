"""Speaks a text of any length as one stream of audio: part after part, with the next part requested ahead.

A pipeline's talker makes at most so many tokens for one request. So the text is cut into parts that fit
(omni_proto.text), and each part is a request of its own. While one part is sent, the next one is generated: at most two
are in flight.

A part that nevertheless ends at its maximum length is cut further and spoken again if nothing of it was sent yet.
Otherwise the speech continues with the next part, and `cut` says that words are missing.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Final

from omni_gateway.errors import InternalError, RateLimitError, UnavailableError
from omni_proto.client import Accepted, AudioChunk, Event, Summary
from omni_proto.text import (
    LONGEST_UNITS,
    SHORTEST_UNITS,
    measure,
    pause_after,
    split_further,
    split_parts,
    units_for,
)

FADE_S: Final = 0.005
"""Too short to be heard as a fade, and long enough that no step between two samples is heard as a click."""
AHEAD_BYTES: Final = 256 << 10
"""Maximum bytes of a part's audio that wait to be sent: 5 s at 24 kHz. Then its stages wait, too."""
RETRY_S: Final = 1.0
"""Pause before a part that a full pipeline refused is requested again, if the pipeline names none."""
MAX_STARTS: Final = 128
"""How many requests of the pipeline one text may become by being cut finer than its first plan. Its words are then
spoken in longer parts, which a talker of so low a limit may cut."""
OpenPart = Callable[[str], Awaitable[AsyncGenerator[Event, None]]]
"""Requests the speech of a text; see open_answer."""


class Seams:
    """Passes samples (s16le, channels interleaved) on. Only at borders between parts are they changed.

    Holds back the last few milliseconds, because they fade out if another part follows.
    """

    def __init__(self, rate_hz: int, channels: int) -> None:
        self._rate_hz = rate_hz
        self._frame = 2 * channels
        self._fade = max(1, round(rate_hz * FADE_S))
        self._held = b""
        self._faded_in: int | None = None
        """Frames of the part that were faded in; None: the first part, which begins as the model made it."""

    def add(self, pcm: bytes) -> bytes:
        """Returns samples that may be played. pcm: the next samples of the part."""
        if self._faded_in is not None and self._faded_in < self._fade:
            pcm = self._fade_in(pcm, self._faded_in)
        data = self._held + pcm
        end = max(0, len(data) - self._fade * self._frame)
        self._held = data[end:]
        return data[:end]

    def pause(self, seconds: float) -> bytes:
        """Returns the end of the part, faded out, and silence. The next samples are those of another part."""
        frames = len(self._held) // self._frame
        gains = [place / self._fade for place in range(frames, 0, -1)]
        faded = _scale(self._held, gains, self._frame // 2)
        self._held, self._faded_in = b"", 0
        return faded + bytes(self._frame * round(self._rate_hz * seconds))

    def finish(self) -> bytes:
        """Returns the end of the last part."""
        rest, self._held = self._held, b""
        return rest

    def _fade_in(self, pcm: bytes, begin: int) -> bytes:
        frames = min(self._fade - begin, len(pcm) // self._frame)
        size = frames * self._frame
        self._faded_in = begin + frames
        gains = [(begin + place) / self._fade for place in range(frames)]
        return _scale(pcm[:size], gains, self._frame // 2) + pcm[size:]


def _scale(pcm: bytes, gains: list[float], channels: int) -> bytes:
    samples = array("h", pcm)
    for frame, gain in enumerate(gains):
        for place in range(frame * channels, (frame + 1) * channels):
            samples[place] = round(samples[place] * gain)
    return samples.tobytes()


class SpeechPart:
    """One part that is being spoken. Its events are read ahead, at most AHEAD_BYTES of audio."""

    def __init__(self, text: str, spoken: str, open_part: OpenPart, patience_s: float) -> None:
        """spoken: what of the text is requested. patience_s: for how many seconds a full pipeline is asked again."""
        self.text = text
        self._spoken = spoken
        self.max_tokens = 0
        """Most tokens of the later stages, as far as they have said; 0: not known."""
        self.summary: Summary | None = None
        self.sent = False
        """Whether some of its audio was taken."""
        self._chunks: deque[AudioChunk] = deque()
        self._held = 0
        self._changed = asyncio.Condition()
        self._entry = ""
        self._task = asyncio.create_task(self._read(open_part, patience_s))
        self._task.add_done_callback(lambda _: asyncio.ensure_future(self._notify()))

    @property
    def ended(self) -> bool:
        """Whether it is complete, or has failed."""
        return self._task.done()

    @property
    def is_cut(self) -> bool:
        """Whether a stage reached its maximum length."""
        return self.summary is not None and bool(self.summary.cut_stages)

    async def accept(self) -> None:
        """Wait until the entry stage has accepted the part. Raises GatewayError."""
        await self._wait(lambda: bool(self._entry))

    async def begin(self) -> None:
        """Wait until there is audio, or the part has ended. Raises GatewayError."""
        await self._wait(lambda: bool(self._chunks))

    async def settle(self) -> None:
        """Wait until the part has ended, or as much audio waits as may. Raises GatewayError."""
        await self._wait(lambda: self._held >= AHEAD_BYTES)

    async def chunks(self) -> AsyncGenerator[AudioChunk, None]:
        """Yields the audio. Raises GatewayError."""
        while True:
            await self.begin()
            if not self._chunks:
                return
            self.sent = True
            chunk = self._chunks.popleft()
            async with self._changed:
                self._held -= len(chunk.data)
                self._changed.notify_all()
            yield chunk

    async def close(self) -> None:
        """Cancel the part in all stages, unless it has ended. Idempotent."""
        self._task.cancel()
        with suppress(asyncio.CancelledError, Exception):  # the reader of the audio gets its errors
            await self._task

    async def _wait(self, is_there: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.summary is not None or self.ended or is_there())
        if self.ended and not self._chunks:
            self._task.result()

    async def _read(self, open_part: OpenPart, patience_s: float) -> None:
        async with aclosing(await self._open(open_part, patience_s)) as events:
            async for event in events:
                await self._take(event)
        if self.summary is None:
            raise InternalError("The answer ended without a summary.")

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _open(self, open_part: OpenPart, patience_s: float) -> AsyncGenerator[Event, None]:
        begun = time.monotonic()
        while True:
            try:
                return await open_part(self._spoken)
            except (RateLimitError, UnavailableError) as error:
                wait_s = error.retry_after_s or RETRY_S
                if time.monotonic() + wait_s - begun > patience_s:
                    raise
            await asyncio.sleep(wait_s)

    async def _take(self, event: Event) -> None:
        async with self._changed:
            if isinstance(event, Accepted):
                if self._entry and event.max_tokens:
                    self.max_tokens = min(self.max_tokens or event.max_tokens, event.max_tokens)
                self._entry = self._entry or event.stage
                self._changed.notify_all()
            elif isinstance(event, Summary):
                self.summary = event
            elif isinstance(event, AudioChunk) and event.data:
                self._chunks.append(event)
                self._held += len(event.data)
                self._changed.notify_all()
                await self._changed.wait_for(lambda: self._held < AHEAD_BYTES)


class SpeechStream:
    """The speech of one text. Iterate over `chunks` once; then the other fields describe all of it."""

    def __init__(self, text: str, open_part: OpenPart, *, patience_s: float) -> None:
        """patience_s: for how long a later part may wait for a full pipeline, in seconds."""
        self.summaries: list[Summary] = []
        """One for each part that was spoken."""
        self.cut_stages: tuple[str, ...] = ()
        """Stages whose maximum length cut a part, so that words are missing."""
        self._open_part = open_part
        self._patience_s = patience_s
        self._longest = LONGEST_UNITS
        self._text = text
        self._waiting = deque(_list_spoken(split_parts(text)))
        self._is_first = True
        self._starts_left = max(MAX_STARTS, 2 * len(self._waiting))
        self._current = self._start()
        self._ahead: SpeechPart | None = None

    async def begin(self, *, accepted: bool) -> None:
        """Wait until the first part has audio; with `accepted`, only until its entry stage has accepted it.

        Raises GatewayError, and is then closed.
        """
        try:
            await (self._current.accept() if accepted else self._prepare())
        except BaseException:
            await self.close()
            raise

    async def chunks(self) -> AsyncGenerator[AudioChunk, None]:
        """Yields the audio as one continuous stream. Raises GatewayError. Closing it cancels all that is in flight."""
        seams: Seams | None = None
        last: AudioChunk | None = None
        try:
            while True:
                await self._prepare()
                async for chunk in self._current.chunks():
                    if last is not None and _form(chunk) != _form(last):
                        raise InternalError("The parts of the speech have different sample rates or channels.")
                    last = chunk
                    seams = seams or Seams(chunk.sample_rate_hz, chunk.channels)
                    if self._ahead is None and self._waiting:
                        self._ahead = self._start()
                    yield replace(chunk, data=seams.add(chunk.data))
                self._note(self._current)
                if self._ahead is None and not self._waiting:
                    break
                if last is not None and seams is not None:
                    yield replace(last, data=seams.pause(pause_after(self._current.text)))
                self._current, self._ahead = self._ahead or self._start(), None
            if last is not None and seams is not None:
                yield replace(last, data=seams.finish())
        finally:
            await self.close()

    async def close(self) -> None:
        """Cancel all that is in flight. Idempotent."""
        for part in (self._current, self._ahead):
            if part is not None:
                await part.close()

    def _start(self) -> SpeechPart:
        text = self._waiting.popleft()
        self._starts_left -= 1
        patience_s = 0.0 if self._is_first else self._patience_s
        self._is_first = False
        # A text that needs no cut is spoken exactly as it is written.
        return SpeechPart(text, text if text == self._text else text.strip(), self._open_part, patience_s)

    async def _prepare(self) -> None:
        """Wait for the current part's first audio. Cuts the part finer while it does not fit and nothing was sent."""
        while not self._current.sent:
            part = self._current
            await part.begin()
            longest = units_for(part.max_tokens)
            if longest < self._longest:
                self._longest = longest
                if measure(part.text) > longest and (
                    texts := self._cut("".join([part.text, *self._list_unsent()]), longest)
                ):
                    await self._replan(texts)
                    continue
            if self._longest < LONGEST_UNITS:
                # With so low a limit a part is short, and complete before it must be sent.
                await part.settle()
            finer = split_further(part.text) if part.is_cut else []
            if len(finer) < 2:
                return
            # The parts after this one would probably be cut too.
            longest = max(SHORTEST_UNITS, min(self._longest, measure(part.text) // 2))
            unsent = self._list_unsent()
            # A long text is cut again only for a lower limit: at most six times, however many parts do not fit.
            later = self._cut("".join(unsent), longest) if longest < self._longest else unsent
            self._longest = longest
            if (unsent and not later) or len(finer) + len(later) > self._starts_left:
                return
            await self._replan([*finer, *later])

    def _cut(self, text: str, longest: int) -> list[str]:
        """Returns the text in parts of at most `longest` units, or longer ones if as many requests are not left; empty
        if none are."""
        parts = _list_spoken(split_parts(text, longest))
        while len(parts) > self._starts_left and longest < LONGEST_UNITS:
            longest *= 2
            parts = _list_spoken(split_parts(text, longest))
        return parts if len(parts) <= self._starts_left else []

    def _list_unsent(self) -> list[str]:
        """Returns the texts after the current part."""
        return [*([self._ahead.text] if self._ahead else []), *self._waiting]

    async def _replan(self, texts: Iterable[str]) -> None:
        """Drop the current part and the one ahead, of which nothing was sent, and speak these texts instead."""
        await self.close()
        self._waiting = deque(_list_spoken(texts))
        self._ahead = None
        self._current = self._start()

    def _note(self, part: SpeechPart) -> None:
        if part.summary is None:
            raise InternalError("The answer ended without a summary.")
        self.summaries.append(part.summary)
        self.cut_stages = tuple(dict.fromkeys((*self.cut_stages, *part.summary.cut_stages)))


def _list_spoken(texts: Iterable[str]) -> list[str]:
    return [text for text in texts if text.strip()]


def _form(chunk: AudioChunk) -> tuple[int, int]:
    return chunk.sample_rate_hz, chunk.channels
