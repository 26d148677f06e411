"""The tasks of one session: one reads the client's events, one sends to it, and one for each response."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from omni_gateway.api.body_route import INLINE_BYTES, SHORT_BYTES
from omni_gateway.api.live import encode_json
from omni_gateway.context import Call, Gateway, Ration, Share
from omni_gateway.errors import GatewayError, InternalError, InvalidRequestError
from omni_gateway.realtime.detector import Detector
from omni_gateway.realtime.pipeline_calls import ask_pipeline, begin_call, learn_writer, write_down
from omni_gateway.realtime.state.client_events import (
    Clear,
    ClientEvent,
    Commit,
    EventError,
    SessionUpdate,
    read_event,
)
from omni_gateway.realtime.state.effects import (
    Ask,
    Effect,
    Heard,
    Listen,
    Release,
    Send,
    Stop,
    Transcribe,
    report_limits,
)
from omni_gateway.realtime.state.response import Ended, Failed, Output
from omni_gateway.realtime.state.session import Session

log = logging.getLogger(__name__)

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
"""RFC 6455's codes: of the end of a session's time or of a gateway that leaves; of an error; of a full gateway."""
FAILED: Final = 1011
OVERLOADED: Final = 1013
_FAILED: Final = "The gateway failed; its log has the reason, with the session's x-request-id."
WAITING_EVENTS: Final = 32
"""Events that may wait to be sent before no more is read from the pipeline."""
TOO_LONG: Final = frozenset(("context_length_exceeded", "string_above_max_length"))
"""Codes of prompts that are too long, for the model or for maxPromptChars."""
CHECK_S: Final = 0.5
"""How often a session looks whether its time is over, or whether the gateway leaves."""


class _Closing(Exception):
    """The session ends by the gateway's will."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class RealtimeCall:
    """Runs one session, whose WebSocket is open."""

    def __init__(self, websocket: WebSocket, gateway: Gateway, call: Call, ration: Ration, session: Session) -> None:
        self._websocket = websocket
        self._gateway = gateway
        self._call = call
        self._ration = ration
        self._session = session
        self._detector: Detector | None = None
        self._waiting: deque[dict[str, Any]] = deque()
        self._has_events = asyncio.Event()
        self._has_place = asyncio.Event()
        self._responses: dict[str, asyncio.Task[None]] = {}
        self._releases: dict[str, asyncio.Event] = {}
        """Of the responses that were asked early: set when they may be passed on."""
        self._others: set[asyncio.Task[None]] = set()
        self._held = 0
        self._events = 0
        self._calls = 0

    async def run(self) -> None:
        """Hold the session until its client or the gateway ends it."""
        self._gateway.metrics.sessions.inc()
        self._do(self._session.open())
        main = [asyncio.ensure_future(one) for one in (self._read(), self._write(), self._watch())]
        code, reason = NORMAL, ""
        try:
            done, _ = await asyncio.wait(main, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except _Closing as closing:
            code, reason = closing.code, str(closing)
        except WebSocketDisconnect:
            code = 0
        except Exception:
            log.exception("session failed", extra={"request_id": self._call.id})
            code, reason = FAILED, _FAILED
        finally:
            await _end([*main, *self._responses.values(), *self._others])
            self._gateway.metrics.sessions.dec()
        if code:
            with contextlib.suppress(RuntimeError, OSError, WebSocketDisconnect, TimeoutError):
                async with asyncio.timeout(self._gateway.settings.send_seconds):
                    await self._websocket.close(code, reason)

    async def _read(self) -> None:
        """Read events. Raises WebSocketDisconnect, _Closing."""
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", NORMAL))
            text = message.get("text")
            if text is None:
                text = (message.get("bytes") or b"").decode("utf-8", "replace")
            share = self._ration.new_share()
            try:
                share.add(len(text))
                event = await self._parse(text, share)
                del text, message
                if isinstance(event, SessionUpdate):
                    await learn_writer(self._gateway, self._call, self._session.abilities, event.session)
                effects = self._session.receive(event)
                if self._session.config.audio.input.turn_detection is None:
                    self._detector = None  # it misses the audio until it is wanted again
                elif isinstance(event, Commit | Clear) and self._detector is not None:
                    self._detector.reset()
            except EventError as error:
                effects = [self._session.refuse(error.error, error.event_id)]
            except GatewayError as error:  # no memory is left
                raise _Closing(OVERLOADED, error.message) from error
            finally:
                share.release()
            self._count()
            for effect in effects:
                if isinstance(effect, Listen):
                    await self._listen(effect)
                else:
                    self._do([effect])
            # Responses stop at half of it, so that none of them delays the event that interrupts it.
            await self._let_send(2 * WAITING_EVENTS)

    async def _parse(self, text: str, share: Share) -> ClientEvent:
        """Returns an event. Long ones are read in a thread, one after another, as the bodies of requests are."""
        most = self._gateway.settings.max_prompt_chars
        if len(text) <= INLINE_BYTES:
            return read_event(text, most, share.add)
        async with self._gateway.reading[len(text) > SHORT_BYTES]:
            return await asyncio.to_thread(read_event, text, most, share.add)

    def _count(self) -> None:
        """Count what the session holds. Raises _Closing if no memory is left."""
        held = self._session.held_bytes
        change, self._held = held - self._held, held
        if change < 0:
            self._call.media_share.remove(-change)
        elif change:
            try:
                self._call.media_share.add(change)
            except GatewayError as error:
                raise _Closing(OVERLOADED, error.message) from error

    async def _listen(self, effect: Listen) -> None:
        detector, format = self._detector, self._session.buffer.format
        if detector is None or detector.format != format:
            early_ms = self._gateway.settings.realtime.early_silence_ms
            detector = self._detector = Detector(effect.settings, format, effect.start_ms, early_ms)
        detector.use(effect.settings)  # a turn of the user that is in progress continues
        async for turn in detector.add(effect.data):
            self._do(self._session.turn(turn))

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._waiting.append(effect.event)
            elif isinstance(effect, Ask):
                if effect.is_early:
                    self._releases[effect.response_id] = asyncio.Event()
                task = asyncio.ensure_future(self._respond(effect))
                self._responses[effect.response_id] = task
                task.add_done_callback(partial(self._forget, effect.response_id))
            elif isinstance(effect, Release):
                self._releases[effect.response_id].set()
            elif isinstance(effect, Stop):
                self._waiting = drop_audio(self._waiting, effect.response_id)
                if (running := self._responses.get(effect.response_id)) is not None:
                    running.cancel()
            elif isinstance(effect, Transcribe):
                self._start(self._transcribe(effect))
        self._has_events.set()

    def _forget(self, response_id: str, task: asyncio.Task[None]) -> None:
        self._responses.pop(response_id, None)
        self._releases.pop(response_id, None)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def _respond(self, ask: Ask) -> None:
        """Ask the pipeline for a response, and pass on what it returns."""
        self._calls += 1
        share = self._ration.new_share()
        call = begin_call(self._call, self._calls, share)
        status, error, leave = "cancelled", None, None
        release = self._releases[ask.response_id] if ask.is_early else None
        try:
            leave, limits = self._ration.enter()
            told = report_limits(limits)
            async with aclosing(self._ask(call, ask)) as outputs:
                if release is None:
                    self._do(told)
                async for output in outputs:
                    if release is not None:
                        # Meanwhile little more arrives, because gRPC lets the pipeline wait.
                        await release.wait()
                        self._do(told)
                        release = None
                    if isinstance(output, Ended):
                        status = "incomplete" if output.is_cut else "completed"
                    self._do(self._session.answer(ask.response_id, output))
                    await self._let_send()
        except GatewayError as found:
            error = found
        except Exception:
            log.exception("response failed", extra={"request_id": call.id})
            error = InternalError(_FAILED)
        finally:
            if leave is not None:
                leave(call.audio_seconds)
            share.release()
            # A release that came before the first output counts as one.
            dropped = release is not None and not release.is_set()
            self._record(call, "dropped" if dropped else "failed" if error else status, error)
        if error is not None and release is not None:
            # Nobody has heard of the answer. What failed may work when the turn is over.
            await release.wait()
            await self._respond(replace(ask, is_early=False))
        elif error is not None:
            failed = Failed(error.type, error.specific_code or error.code, error.message)
            self._do(self._session.answer(ask.response_id, failed))

    async def _ask(self, call: Call, ask: Ask) -> AsyncGenerator[Output, None]:
        """Yields what the pipeline returns. While the conversation is too long, it is asked again without the oldest
        turns. Raises GatewayError."""
        while True:
            try:
                async with aclosing(ask_pipeline(self._gateway, call, ask)) as outputs:
                    async for output in outputs:
                        yield output
                return
            except GatewayError as error:
                prompt = self._session.shorten(ask.response_id) if error.specific_code in TOO_LONG else None
                if prompt is None:
                    raise
                ask = replace(ask, prompt=prompt)

    def _record(self, call: Call, status: str, error: GatewayError | None) -> None:
        """Count a response, and log it as a request is logged."""
        self._gateway.metrics.responses.labels(status).inc()
        facts: dict[str, Any] = {"request_id": call.id, "status": status, "model": call.model, "key": call.key}
        facts |= {"seconds": round(time.monotonic() - call.started, 4), "audio_seconds": round(call.audio_seconds, 3)}
        if error is not None:
            code = error.specific_code or error.code or ""
            self._gateway.metrics.broken.labels(code).inc()
            facts["error"] = code
        log.info("response", extra=facts)

    async def _transcribe(self, effect: Transcribe) -> None:
        self._calls += 1
        share = self._ration.new_share()
        call = begin_call(self._call, self._calls, share)
        leave = None
        try:
            leave, _ = self._ration.enter()
            async with aclosing(write_down(self._gateway, call, effect.audio, effect.settings)) as pieces:
                async for piece in pieces:
                    self._do(self._session.transcribe(effect.item_id, piece))
        except GatewayError as error:
            self._do(self._session.transcribe(effect.item_id, Heard("", error=error)))
        except Exception:
            log.exception("transcript failed", extra={"request_id": call.id})
            self._do(self._session.transcribe(effect.item_id, Heard("", error=InternalError(_FAILED))))
        finally:
            if leave is not None:
                leave(0.0)
            share.release()

    async def _write(self) -> None:
        """Send events. Raises TimeoutError if the client takes none, and WebSocketDisconnect."""
        while True:
            await self._has_events.wait()
            self._has_events.clear()
            while self._waiting:
                self._events += 1
                event = {"event_id": f"event_{self._events}", **self._waiting.popleft()}
                try:
                    async with asyncio.timeout(self._gateway.settings.send_seconds):
                        await self._websocket.send_text(encode_json(event))
                except (TimeoutError, OSError) as error:
                    raise WebSocketDisconnect from error
                if len(self._waiting) < 2 * WAITING_EVENTS:
                    self._has_place.set()

    async def _let_send(self, most: int = WAITING_EVENTS) -> None:
        """Wait until fewer events wait to be sent."""
        while len(self._waiting) >= most:
            self._has_place.clear()
            await self._has_place.wait()

    async def _watch(self) -> None:
        """Raises _Closing when the session's time is over, or when the gateway leaves and no turn is in progress."""
        longest_s = self._gateway.settings.realtime.session_seconds
        ends_at = self._call.started + longest_s
        while True:
            await asyncio.sleep(min(CHECK_S, max(0.0, ends_at - time.monotonic())))
            if time.monotonic() >= ends_at:
                said = f"The session has lasted {longest_s:g} s, the limit; open another one."
                self._do([self._session.refuse(InvalidRequestError(said, code="session_expired"), None)])
                await asyncio.sleep(CHECK_S)
                raise _Closing(GOING_AWAY, said)
            if self._gateway.draining and not self._session.is_busy:
                raise _Closing(GOING_AWAY, "This gateway is shutting down; connect again.")


def drop_audio(events: Iterable[dict[str, Any]], response_id: str) -> deque[dict[str, Any]]:
    """Returns the events without a response's audio, which nobody shall hear any more."""
    kind = "response.output_audio.delta"
    return deque(one for one in events if one["type"] != kind or one["response_id"] != response_id)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
