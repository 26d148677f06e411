"""The rows that an autoregressive stage sends: one row for each captured position, exactly once and in order, whatever
the scheduler does.

A step computes spans of positions. Chunked prefill splits a prompt over steps, batching mixes requests, and a preempted
request is computed again from its start, so positions repeat. The ledger keeps, for each request, the first position
that has not been captured yet; only the rows of a span from that position on are captured. Rows of prefill
chunks wait here until the step that samples a token, since vLLM forwards nothing to the front end before that.

The functions that plan are pure. Only `HostCopy` touches a device: it lets one batched device-to-host copy per step
overlap with the next step's work.

Not captured: positions that were never computed here, that is prefix-cache hits and KV from a connector. The scheduler
adds the rows of prefix-cache hits (scheduling/cached_prefixes.py); the runner refuses KV connectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from omni_stage.errors import ModelExecutionError
from omni_stage.vllm_adapter.hooks import ScheduledSpan
from omni_stage.vllm_adapter.worker import host_memory


@dataclass(frozen=True, slots=True)
class FreshRows:
    """Rows [begin, end) of the step's batch: positions of one request that were not captured before."""

    request_id: str
    begin: int
    end: int
    position: int = 0
    """Position of the first row in its request."""


def select_rows(
    fresh: Iterable[FreshRows], select: Callable[[FreshRows], Sequence[tuple[int, int]]]
) -> list[FreshRows]:
    """Returns the rows that `select` chooses. Raises ValueError if one of its ranges is not valid.

    `select` gets one entry of `fresh` and returns ascending ranges [begin, end) of its rows, relative to its first row.
    """
    selected: list[FreshRows] = []
    for rows in fresh:
        reached = 0
        for begin, end in select(rows):
            if not reached <= begin <= end <= rows.end - rows.begin:
                raise ValueError(
                    f"[{begin}, {end}) is not a range within {rows.end - rows.begin} positions after the previous range"
                )
            reached = end
            if begin < end:
                first = rows.begin + begin
                selected.append(FreshRows(rows.request_id, first, rows.begin + end, rows.position + begin))
    return selected


def compute_spans(
    request_ids: Sequence[str], num_scheduled_tokens: Mapping[str, int], starts: Mapping[str, int]
) -> list[ScheduledSpan]:
    """Returns the spans of a step's batch, in batch order. `starts`: first computed position per request."""
    spans: list[ScheduledSpan] = []
    offset = 0
    for request_id in request_ids:
        length = num_scheduled_tokens[request_id]
        spans.append(ScheduledSpan(request_id, starts[request_id], length, offset))
        offset += length
    return spans


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns ascending ranges with adjacent ones joined: a batch whose rows are all wanted becomes one slice."""
    merged: list[tuple[int, int]] = []
    for begin, end in ranges:
        if merged and merged[-1][1] == begin:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


class HostCopy:
    """A tensor on its way to the host. `wait` returns the tensor once it has arrived. Any thread may call `wait`."""

    def __init__(self, source: torch.Tensor, stream: torch.cuda.Stream | None) -> None:
        """Start the copy of `source`, which must own its memory, because the next step overwrites the model's buffers.

        With a stream, the copy runs on it into pinned memory while the caller's stream continues to the next step. On
        the CPU there is nothing to copy.
        """
        self._event: torch.cuda.Event | None = None
        if stream is None:
            self._host = source
            return
        self._host = host_memory.pinned_empty(source.shape, source.dtype)
        stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(stream):
            self._host.copy_(source, non_blocking=True)
            # The allocator must not hand the source's memory out again before this stream has read it.
            source.record_stream(stream)
            # The wait must block: a spinning wait would hold the driver's lock while the next step is launched.
            self._event = torch.cuda.Event(blocking=True)
            self._event.record(stream)

    def wait(self) -> torch.Tensor:
        """Wait for the copy. Returns the tensor on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


@dataclass(frozen=True, slots=True)
class HostSlice:
    """Rows [begin, end) of a step's copies."""

    copies: Mapping[str, HostCopy]
    """Copies by the tensor's name."""
    begin: int
    end: int
    position: int = 0
    """Position of the first row in its request."""

    def wait(self) -> dict[str, torch.Tensor]:
        """Wait for the copies. Returns the rows on the host by name, as views of the step's copies."""
        return {name: copy.wait()[self.begin : self.end] for name, copy in self.copies.items()}


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one request sends in one step: rows of this step and those held back from earlier ones, in order."""

    slices: tuple[HostSlice, ...]
    first: bool
    """Whether the request has sent nothing before."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns [N, ...] by name, on the host, as copies: a view would keep the whole step's copy alive."""
        pieces = [piece.wait() for piece in self.slices]
        return {name: torch.cat([piece[name] for piece in pieces]) for name in (pieces[0] if pieces else ())}

    def positions(self) -> torch.Tensor:
        """Returns [N] int64, the position of each row in its request."""
        ranges = [torch.arange(piece.end - piece.begin) + piece.position for piece in self.slices]
        return torch.cat(ranges) if ranges else torch.empty(0, dtype=torch.int64)


@dataclass(slots=True)
class _Progress:
    next_position: int = 0
    sent: bool = False
    held: list[HostSlice] = field(default_factory=list)


class CaptureLedger:
    """Which positions of each request were captured, and the rows that wait to be sent. For use by one thread."""

    def __init__(self) -> None:
        self._progress: dict[str, _Progress] = {}
        self.always_delivers_first = False
        """Whether a request's first token has a delivery even if no row was captured before it."""

    def __bool__(self) -> bool:
        """Returns whether any request wants rows."""
        return bool(self._progress)

    def __contains__(self, request_id: str) -> bool:
        """Returns whether this request wants rows."""
        return request_id in self._progress

    def open(self, request_id: str, position: int = 0) -> None:
        """Register a request that wants rows, from a position on. Opening it again changes nothing."""
        self._progress.setdefault(request_id, _Progress(position))

    def close(self, request_id: str) -> None:
        """Drop the rows held for a request that has ended."""
        self._progress.pop(request_id, None)

    def rewind(self, request_id: str, position: int) -> None:
        """Continue a resumed streaming session at `position`: rows computed after it were never delivered.

        Position 0 means that the session lost its KV cache and is computed again. Then nothing changes, so that rows
        that were sent are not sent twice.
        """
        progress = self._progress.get(request_id)
        if progress is not None and position > 0 and not progress.held:
            progress.next_position = min(progress.next_position, position)

    def plan(self, spans: Iterable[ScheduledSpan]) -> tuple[list[FreshRows], dict[str, ModelExecutionError]]:
        """Count a step's new rows as captured. Returns these rows, and an error for each request with a gap.

        A gap is a span that begins after the request's next position: the rows between are lost. Such a request is
        closed; the other requests of the batch continue.
        """
        fresh: list[FreshRows] = []
        gaps: dict[str, ModelExecutionError] = {}
        for span in spans:
            progress = self._progress.get(span.request_id)
            if progress is None:
                continue
            known = progress.next_position - span.start
            if known < 0:
                self.close(span.request_id)
                gaps[span.request_id] = ModelExecutionError(
                    f"rows of positions {progress.next_position} to {span.start - 1} were never computed on this "
                    "stage; switch KV connectors off",
                )
            elif known < span.length:
                begin, end = span.offset + known, span.offset + span.length
                fresh.append(FreshRows(span.request_id, begin, end, progress.next_position))
                progress.next_position = span.start + span.length
        return fresh, gaps

    def settle(
        self, fresh: Sequence[FreshRows], copies: Mapping[str, HostCopy], sampling: Iterable[str]
    ) -> dict[str, Delivery]:
        """Returns this step's deliveries: for each request that samples, its rows of this step and those held back.

        `copies` hold the fresh rows one after another, by name; empty on a rank whose output is not read.
        """
        offset = 0
        for rows in fresh:
            end = offset + rows.end - rows.begin
            if copies:
                self._progress[rows.request_id].held.append(HostSlice(copies, offset, end, rows.position))
            offset = end
        deliveries: dict[str, Delivery] = {}
        for request_id in sampling:
            progress = self._progress.get(request_id)
            if progress is not None and (progress.held or (self.always_delivers_first and not progress.sent)):
                deliveries[request_id] = Delivery(tuple(progress.held), first=not progress.sent)
                progress.held.clear()
                progress.sent = True
        return deliveries
