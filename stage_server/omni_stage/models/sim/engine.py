"""PacedEngine: a StageEngine whose steps take the time that a table gives.

A clock decides which requests make up a step and when the step ends; a ticker wakes up at that time. Virtual time
continues while the stage server is busy, just as an engine in its own process would continue. So any delay beyond the
table's times comes from the stage server. The content of each request comes from its run (TextRun, CodecRun, or
AudioRuns).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Final

from omni_proto.stage_config import StageConfig
from omni_proto.tensors import ReceivedTensor, TensorSpec
from omni_stage.errors import ConfigurationError, ModelExecutionError
from omni_stage.exchange import Array, to_numpy
from omni_stage.models.component import EdgeStream, FinishReason, ServedComponent, StageRequest, StageStep
from omni_stage.models.sim.audio_runs import AudioRuns
from omni_stage.models.sim.gauges import EngineGauges, Load
from omni_stage.models.sim.manifest import DECODER, THINKER
from omni_stage.models.sim.stages import CodecRun, Decoder, Talker, TextRun, Thinker
from omni_stage.models.sim.tables import Table, read_table, token_cost
from omni_stage.models.sim.virtual_time.clock import EngineLimits, Made, Sequence, StepClock
from omni_stage.models.sim.virtual_time.prefixes import name_blocks
from omni_stage.models.sim.virtual_time.ticker import Mailbox, Ticker
from omni_stage.vllm_adapter.scheduling.sessions import SessionRoom, Sessions

DEFAULT_MODEL_LEN: Final = 32_768
DEFAULT_SEQS: Final = 1024
DEFAULT_STEP_TOKENS: Final = 8192
"""DEFAULT_SEQS and DEFAULT_STEP_TOKENS are vLLM's defaults for a server on an H100."""
_MIB: Final = 1 << 20


class PacedEngine(ABC):
    """The base class of paced engines. For use from one event loop."""

    is_dead = False
    compiled_check_failed = False
    kernels_compiled = 0
    reused_rows = (0, 0)
    prompt_embeds: TensorSpec | None = None
    component: ServedComponent

    def __init__(self, config: StageConfig) -> None:
        self._model = Path(config.model.path).name
        self._gauges: EngineGauges | None = None
        self.max_model_len = config.engine_args.max_model_len or DEFAULT_MODEL_LEN

    def open_tensors(self, received: Mapping[str, ReceivedTensor]) -> Mapping[str, Array]:
        """Returns numpy arrays, with bfloat16 as uint16."""
        return to_numpy(received)

    @property
    @abstractmethod
    def load(self) -> Load:
        """The engine's current load and its totals."""

    async def start(self) -> None:
        """Register the metrics. There is nothing to load."""
        self._gauges = EngineGauges(self._model, lambda: self.load)

    async def shutdown(self) -> None:
        """Unregister the metrics. Idempotent."""
        if self._gauges is not None:
            self._gauges.close()
            self._gauges = None


class PacedTokens(PacedEngine):
    """The engine of a thinker or a talker, with continuous batching."""

    def __init__(self, config: StageConfig, table: Table) -> None:
        super().__init__(config)
        self.last_step_monotonic = time.monotonic()
        """time.monotonic() of the last step, or of the request that ended an idle period."""
        args = config.engine_args
        is_thinker = config.component == THINKER.id
        shape = table.thinker if is_thinker else table.talker
        self._component: Thinker | Talker = (Thinker if is_thinker else Talker)(table, config, self.max_model_len)
        self.component = self._component
        limits = EngineLimits(
            max_seqs=args.max_num_seqs or DEFAULT_SEQS,
            max_step_tokens=args.max_num_batched_tokens or DEFAULT_STEP_TOKENS,
            kv_tokens=(args.kv_cache_memory_mib or shape.kv_memory_mib) * _MIB // shape.kv_token_bytes,
        )
        if limits.kv_tokens < self.max_model_len:
            raise ConfigurationError(
                f"the KV cache holds {limits.kv_tokens} tokens, fewer than maxModelLen {self.max_model_len}; "
                "lower maxModelLen, or raise kvCacheMemoryMib",
                field="engineArgs.maxModelLen",
                limit=limits.kv_tokens,
            )
        self.max_requests = limits.max_seqs
        """Largest number of requests in a batch."""
        self._caches = args.enable_prefix_caching is True
        self._sessions = Sessions(SessionRoom(limits.max_seqs, limits.kv_tokens))
        self._clock = StepClock(token_cost(shape), limits)
        self._mail: dict[str, Mailbox[Made]] = {}
        self._ticker = Ticker(lambda: self._clock.next_time, self._advance)

    @property
    def unfinished_requests(self) -> int:
        """Number of requests that can run. Requests that wait for more rows do not count."""
        return sum(one.has_work for queue in (self._clock.waiting, self._clock.running) for one in queue)

    @property
    def waiting_requests(self) -> int:
        """Number of requests with streamed input that wait for KV cache and are not in the clock yet."""
        return len(self._sessions.queue.waiting)

    @property
    def load(self) -> Load:
        """The engine's current load and its totals."""
        clock = self._clock
        return Load(
            len(clock.running),
            len(clock.waiting),
            clock.kv_used / clock.limits.kv_tokens,
            clock.prompted,
            clock.generated,
            clock.preempted,
        )

    @property
    def kv_share(self) -> float:
        """Used share of the KV cache, 0 to 1."""
        return self._clock.kv_used / self._clock.limits.kv_tokens

    async def generate(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        """Run one request. Closing the generator aborts it. Raises OmniStageError."""
        run = self._component.open(request)
        reader: asyncio.Task[None] | None = None
        mail = self._mail[request.request_id] = Mailbox()
        try:
            if isinstance(run, CodecRun) and isinstance(request.source, EdgeStream):
                # A reply without text never becomes startable: its stream just ends.
                while not (run.is_startable or run.has_all):
                    run.add(await request.source.read())
            if isinstance(run, CodecRun) and run.is_empty:
                yield StageStep(finish_reason=FinishReason.EMPTY_INPUT)
                return
            submitted: int | None = None
            async with AsyncExitStack() as session:
                if isinstance(run, CodecRun) and isinstance(request.source, EdgeStream):
                    longest = min(run.prompt_tokens + run.limit, self.max_model_len)
                    submitted = time.monotonic_ns()
                    await session.enter_async_context(self._sessions.enter(longest, request.priority))
                    if not run.has_all:
                        reader = asyncio.create_task(self._read(request.request_id, run, request.source, mail))
                self._submit(request, run)
                finish: FinishReason | None = None
                while finish is None:
                    step = run.step(await mail.take())
                    step.submitted_ns = submitted
                    finish = step.finish_reason
                    yield step
        finally:
            if reader is not None:
                reader.cancel()
            del self._mail[request.request_id]
            self._clock.abort(request.request_id, time.monotonic())
            self._ticker.update()

    async def abort(self, request_id: str) -> None:
        """End a request: its `generate` raises ModelExecutionError. Unknown ids are ignored."""
        if (mail := self._mail.get(request_id)) is not None:
            mail.fail(ModelExecutionError("the request was aborted"))

    async def shutdown(self) -> None:
        """Unregister the metrics and stop the ticker. Idempotent."""
        await super().shutdown()
        self._ticker.close()

    def _submit(self, request: StageRequest, run: TextRun | CodecRun) -> None:
        now = time.monotonic()
        if self._clock.next_time is None:
            self.last_step_monotonic = now
        sequence = Sequence(
            request_id=request.request_id,
            prompt_tokens=run.prompt_tokens,
            limit=run.limit,
            allowed=run.allowed,
            priority=request.priority,
            blocks=name_blocks(run.prompt_ids, request.cache_salt) if self._caches else [],
        )
        self._advance(now)
        self._clock.add(sequence, now)
        self._ticker.update()

    async def _read(self, request_id: str, run: CodecRun, stream: EdgeStream, mail: Mailbox[Made]) -> None:
        """Pass the request's input to the clock as it arrives, until it ends."""
        try:
            while not run.has_all:
                run.add(await stream.read())
                now = time.monotonic()
                self._advance(now)
                self._clock.allow(request_id, run.allowed, now, run.limit)
                self._ticker.update()
        except Exception as error:  # noqa: BLE001 - `generate` raises it again
            mail.fail(error)

    def _advance(self, now: float) -> None:
        made = self._clock.advance(now)
        if made:
            self.last_step_monotonic = now
        for one in made:
            if (mail := self._mail.get(one.request_id)) is not None:
                mail.put(one)


class PacedAudio(PacedEngine):
    """The engine of a decoder, for windows and for complete utterances."""

    def __init__(self, config: StageConfig, table: Table) -> None:
        super().__init__(config)
        component = Decoder(table, config, self.max_model_len)
        self.component = component
        max_batch = config.engine_args.max_num_seqs or table.decoder.max_batch
        self._runs = AudioRuns(component, table.decoder, table.talker.frames_per_second, max_batch)

    @property
    def unfinished_requests(self) -> int:
        """Number of requests with a window that is waiting or running."""
        return self._runs.open_windows

    @property
    def waiting_requests(self) -> int:
        """Always 0: a decoder has no KV cache to wait for, and all of its windows wait in the clock."""
        return 0

    @property
    def last_step_monotonic(self) -> float:
        """time.monotonic() of the last step, or of the window that ended an idle period."""
        return self._runs.last_step

    @property
    def load(self) -> Load:
        """The engine's current load and its totals."""
        return self._runs.load

    async def generate(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        """Run one request. Closing the generator aborts it. Raises OmniStageError."""
        async with aclosing(self._runs.run(request)) as steps:
            async for step in steps:
                yield step

    async def abort(self, request_id: str) -> None:
        """End a request: its `generate` raises ModelExecutionError. Unknown ids are ignored."""
        self._runs.abort(request_id)

    async def shutdown(self) -> None:
        """Unregister the metrics and stop the ticker. Idempotent."""
        await super().shutdown()
        self._runs.close()


def build_engine(config: StageConfig) -> PacedEngine:
    """Returns the engine of a stage. Raises ConfigurationError."""
    table = read_table(config.model.path)
    return PacedAudio(config, table) if config.component == DECODER.id else PacedTokens(config, table)
