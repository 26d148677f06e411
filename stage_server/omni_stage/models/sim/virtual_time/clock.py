"""Continuous batching in virtual time: which requests make up an autoregressive step, and when it ends. Pure.

`add`, `allow` and `abort` report events and their times. `advance` completes every step that has ended by the given
time, and returns the tokens. The next step begins at the time when a step ends, with the requests that had arrived by
then, even if `advance` is called later; an engine in its own process does the same. So a late call of `advance` returns
the tokens of several steps, and steps take exactly the table's times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from omni_stage.models.sim.virtual_time.prefixes import BLOCK_TOKENS, PrefixCache


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """EngineLimits of an engine."""

    max_seqs: int
    """Maximum number of requests that run concurrently; others wait."""
    max_step_tokens: int
    """Maximum number of tokens in a step."""
    kv_tokens: int
    """Capacity of the KV cache in tokens."""


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One request."""

    request_id: str
    prompt_tokens: int
    """Number of prompt tokens, at least 1."""
    limit: int
    """Number of tokens that the request generates in total, at least 1."""
    allowed: int
    """Number of tokens that it can generate with the input that has arrived."""
    priority: int = 0
    """Requests with lower values are scheduled earlier."""
    blocks: list[bytes] = field(default_factory=list)
    """Names of the prompt's full blocks (name_blocks). Without names, nothing is reused."""
    arrived: float = 0.0
    computed: int = 0
    """Number of positions of prompt and output whose KV is in the cache."""
    made: int = 0
    """Number of tokens generated so far."""
    scheduled: float | None = None
    """When the request was first part of a step."""
    cached: int = 0
    """Number of prompt tokens that were in the cache when the request was first scheduled."""
    held: int = 0
    """Number of `blocks` that it holds in the cache."""

    @property
    def pending(self) -> int:
        """Number of positions to compute before the next token."""
        return self.prompt_tokens + self.made - self.computed

    @property
    def has_work(self) -> bool:
        return self.made < min(self.limit, self.allowed)


@dataclass(frozen=True, slots=True)
class Made:
    """A generated token."""

    request_id: str
    index: int
    """Index of the token in the request's output."""
    time: float
    scheduled: float
    last: bool
    cached: int
    """Sequence.cached"""


@dataclass(slots=True)
class _Step:
    ends: float
    parts: list[tuple[Sequence, int]]
    """The step's requests, each with the number of positions that the step computes."""


@dataclass(slots=True)
class StepClock:
    """The scheduler and the clock of one engine. Times are seconds of any monotonic clock."""

    cost_ms: Callable[[int, int, int], float]
    """Returns the milliseconds of a step from the numbers of its requests, of its prompt tokens, and of pairs of one of
    these and an earlier token."""
    limits: EngineLimits
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    preempted: int = 0
    """How often a request lost its KV cache to other requests."""
    prompted: int = 0
    """Number of prompt tokens of all requests that have generated a token."""
    generated: int = 0
    """Number of generated tokens."""
    _step: _Step | None = None
    _prefixes: PrefixCache = field(default_factory=PrefixCache)
    _known: dict[str, Sequence] = field(default_factory=dict)

    @property
    def next_time(self) -> float | None:
        """When the running step ends; None if nothing runs."""
        return None if self._step is None else self._step.ends

    def add(self, sequence: Sequence, now: float) -> None:
        """Queue a request that has arrived."""
        sequence.arrived = now
        self._known[sequence.request_id] = sequence
        self.waiting.append(sequence)
        self.waiting.sort(key=attrgetter("priority", "arrived"))
        self._begin(now)

    def allow(self, request_id: str, tokens: int, now: float, limit: int | None = None) -> None:
        """Record that more of a request's input has arrived, which suffices for `tokens` tokens of output.

        `limit`: after how many tokens the request ends, once that is known. Unknown ids are ignored.
        """
        sequence = self._known.get(request_id)
        if sequence is not None:
            sequence.allowed = tokens
            sequence.limit = sequence.limit if limit is None else limit
            self._begin(now)

    def abort(self, request_id: str, now: float) -> None:
        """End a request. The step that it is part of still takes its full time. Unknown ids are ignored."""
        sequence = self._known.pop(request_id, None)
        if sequence is not None:
            self._remove(sequence)
            self._begin(now)

    def advance(self, now: float) -> list[Made]:
        """Returns the tokens of the steps that have ended by `now`, in order."""
        made: list[Made] = []
        while self._step is not None and self._step.ends <= now:
            step, self._step = self._step, None
            for sequence, positions in step.parts:
                if self._known.get(sequence.request_id) is not sequence:
                    continue
                sequence.computed += positions
                self._hold(sequence, sequence.computed)
                if sequence.pending:
                    continue
                self.prompted += 0 if sequence.made else sequence.prompt_tokens
                self.generated += 1
                sequence.made += 1
                last = sequence.made >= sequence.limit
                first = step.ends if sequence.scheduled is None else sequence.scheduled
                made.append(Made(sequence.request_id, sequence.made - 1, step.ends, first, last, sequence.cached))
                if last:
                    del self._known[sequence.request_id]
                    self._remove(sequence)
            self._begin(step.ends)
        return made

    def _hold(self, sequence: Sequence, tokens: int) -> None:
        """Keep the blocks of the sequence's first tokens."""
        until = max(sequence.held, min(tokens // BLOCK_TOKENS, len(sequence.blocks)))
        if until > sequence.held:
            self._prefixes.hold(sequence.blocks[sequence.held : until])
            sequence.held = until

    def _release(self, sequence: Sequence) -> None:
        if sequence.held:
            self._prefixes.release(sequence.blocks[: sequence.held])
            sequence.held = 0

    def _reuse(self, sequence: Sequence) -> None:
        """Skip what is cached, but never the last position: it gives the next token."""
        if not sequence.blocks:
            return
        usable = (sequence.pending - 1) // BLOCK_TOKENS
        sequence.computed = self._prefixes.count(sequence.blocks[:usable]) * BLOCK_TOKENS
        sequence.cached = sequence.cached if sequence.made else sequence.computed
        self._hold(sequence, sequence.computed)

    def _remove(self, sequence: Sequence) -> None:
        self._release(sequence)
        for queue in (self.waiting, self.running):
            if sequence in queue:
                queue.remove(sequence)

    def _begin(self, now: float) -> None:
        """Begin a step, unless one is running or no request has work."""
        if self._step is not None:
            return
        self._make_room()
        budget = self.limits.max_step_tokens
        parts: list[tuple[Sequence, int]] = []
        for sequence in self.running:
            if sequence.has_work and budget:
                parts.append((sequence, min(sequence.pending, budget)))
                budget -= parts[-1][1]
        used = self.kv_used
        while self.waiting and budget and len(self.running) < self.limits.max_seqs:
            sequence = self.waiting[0]
            if not sequence.has_work or used + sequence.pending > self.limits.kv_tokens:
                break
            self.running.append(self.waiting.pop(0))
            used += sequence.pending
            self._reuse(sequence)
            parts.append((sequence, min(sequence.pending, budget)))
            budget -= parts[-1][1]
        if not parts:
            return
        if any(sequence.blocks for sequence, _ in parts):
            self._prefixes.trim((self.limits.kv_tokens - self.kv_used) // BLOCK_TOKENS)
        prompt = pairs = 0
        for sequence, positions in parts:
            sequence.scheduled = now if sequence.scheduled is None else sequence.scheduled
            # After a request's first token, its last pending position is a decode. Only positions before it, which are
            # computed again after a preemption, cost as much as a prompt's.
            new = positions - (1 if sequence.made and positions == sequence.pending else 0)
            prompt += new
            pairs += new * (2 * sequence.computed + new) // 2
        self._step = _Step(now + self.cost_ms(len(parts), prompt, pairs) / 1000, parts)

    @property
    def kv_used(self) -> int:
        """Number of tokens for which the running requests hold or have reserved KV cache."""
        return sum(sequence.prompt_tokens + sequence.made for sequence in self.running)

    def _make_room(self) -> None:
        """Preempt requests while the KV cache exceeds its capacity: the least urgent first; of equally urgent
        requests, the latest first.

        A preempted request keeps its tokens, but must compute its KV cache again.
        """
        while len(self.running) > 1 and self.kv_used > self.limits.kv_tokens:
            victim = max(self.running, key=attrgetter("priority", "arrived"))
            self.running.remove(victim)
            self._release(victim)
            victim.computed = 0
            self.preempted += 1
            self.waiting.insert(0, victim)
