"""The input of one request: what arrives after Start, and the engine's request that is made from it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from enum import StrEnum

from omni_proto.runtime.limits import Client
from omni_proto.tensors import PROMPT_EMBEDS
from omni_stage.errors import ConfigurationError
from omni_stage.models.component import EdgeInput, EdgeStream, MediaPart, StageRequest, UserPrompt
from omni_stage.service.media.decode_job import damage_note
from omni_stage.service.media.planning import receive_media
from omni_stage.service.request.planning.announced import build_embeds
from omni_stage.service.request.planning.plan import RequestPlan, media_rules
from omni_stage.service.request.planning.prompt import PromptPlan, build_prompt
from omni_stage.service.request.reading import RequestReader, WireMessage, read_input
from omni_stage.service.request.runtime import StageRuntime
from omni_stage.service.request.tracing import Timeline


class InputOrder(StrEnum):
    """When the input is read up to End, relative to the engine's work."""

    BEFORE_ENGINE = "before_engine"
    """Start announced data, and the engine needs all of it."""
    ALONGSIDE_ENGINE = "alongside_engine"
    """Start held all that the engine needs, and only End follows."""
    UNTIL_ENGINE_ENDS = "until_engine_ends"
    """The engine reads a stream, and may end before the stream does."""


class RequestInput:
    """Reads the input of one request, and makes the engine's request from it."""

    def __init__(
        self,
        runtime: StageRuntime,
        plan: RequestPlan,
        messages: AsyncIterator[WireMessage],
        reader: RequestReader,
        timeline: Timeline,
        caller: Client,
        late_s: float = 0.0,
        traceparent: str = "",
    ) -> None:
        """caller: who gets its turn where callers take turns. late_s, traceparent: see StageRequest."""
        self._runtime = runtime
        self._plan = plan
        self._messages = messages
        self._reader = reader
        self._timeline = timeline
        self._caller = caller
        self._late_s = late_s
        self._traceparent = traceparent
        self._stream = EdgeStream() if plan.streamed else None
        if self._stream is not None:
            self.order = InputOrder.UNTIL_ENGINE_ENDS
        elif reader.expects_data:
            self.order = InputOrder.BEFORE_ENGINE
        else:
            self.order = InputOrder.ALONGSIDE_ENGINE
            timeline.input_complete = timeline.now()

    async def receive(self) -> None:
        """Read up to End, and pass rows to a stream as they arrive.

        Raises ProtocolViolationError, TensorError, DeadlineExceededError.
        """
        reader, edge, stream, runtime = self._reader, self._reader.edge, self._stream, self._runtime
        upstream = runtime.config.input.source if runtime.config.input is not None else ""
        while not reader.done:
            reader.feed(await read_input(self._messages, reader, source=upstream))
            if stream is not None and edge is not None and not reader.done:
                stream.put(runtime.engine.open_tensors(edge.take()), edge.complete_tensors)
        self._timeline.input_complete = self._timeline.input_complete or self._timeline.now()
        if edge is not None and upstream:
            runtime.metrics.input_received(upstream, edge.received_bytes, len(reader.tensors))
        if stream is not None:
            stream.end()

    async def build(self, *, want_tensors: bool) -> StageRequest:
        """Returns the engine's request. Raises InvalidRequestError, TensorError, and what `_decode` raises."""
        plan, reader = self._plan, self._reader
        source: UserPrompt | EdgeInput | EdgeStream
        notes: list[str] = []
        if self._stream is not None:
            source = self._stream
        elif plan.prompt is not None and plan.prompt.embeds:
            # Remove the rows from the reader, so that only the payload keeps them from here on.
            source = UserPrompt(prompt_embeds=build_embeds(reader.tensors.pop(PROMPT_EMBEDS)))
        elif plan.prompt is not None:
            media = await self._decode(plan.prompt)
            notes = [
                f"{slot.field}: {note}"
                for slot, part in zip(plan.prompt.media, media, strict=False)
                if (note := damage_note(part))
            ]
            source = build_prompt(plan.prompt, media)
        elif plan.edge is not None:
            context = None if plan.context is None else build_prompt(plan.context)
            source = EdgeInput(self._runtime.engine.open_tensors(reader.tensors), context)
        else:
            stage = self._runtime.config.stage
            raise ConfigurationError(f"stage {stage!r} has neither a prompt nor an edge", field="input")
        return StageRequest(
            request_id=f"{self._runtime.config.stage}-{uuid.uuid4().hex}",
            source=source,
            sampling=plan.sampling,
            voice=plan.voice,
            want_tensors=want_tensors,
            priority=plan.start.priority,
            late_s=self._late_s,
            caller=self._caller,
            cache_salt=plan.start.cache_salt,
            traceparent=self._traceparent,
            notes=notes,
        )

    async def _decode(self, prompt: PromptPlan) -> list[MediaPart]:
        """Returns the prompt's decoded media.

        Raises InvalidRequestError (or a subclass), RequestTooLargeError, PromptTooLongError, PrepareTimeoutError.
        """
        runtime, reader, timeline = self._runtime, self._reader, self._timeline
        rules = media_rules(runtime.config, runtime.engine.component, runtime.engine.max_model_len)
        if rules is None or not prompt.media:
            return []
        rules = replace(rules, hear_videos=prompt.chat is not None and prompt.chat.use_audio_in_video)
        data = {media_id: buffer.data for media_id, buffer in reader.media.items()}
        reader.media = {}
        slots = await runtime.planners.check(receive_media, prompt.media, data, rules)
        del data
        timeline.decode_start = timeline.now()
        limit_s, salt = runtime.config.timeouts.prepare, self._plan.start.cache_salt
        parts = await runtime.media.decode(slots, rules, limit_s, salt)
        timeline.decode_end = timeline.now()
        return parts
