"""Asynchronous scheduling on the CPU, with copies that come as late as a GPU may make them come.

vLLM's CPU platform switches asynchronous scheduling off (`platforms/cpu.py`), so the way that GPUs go (batch queue,
placeholders for tokens, outputs that are waited for one step later, pinned memory) would run nowhere but there.
`async_scheduling()` keeps it on and stands in for the device:

- A copy to the host made on a side stream holds garbage until an event that was recorded behind it is synchronized.
  It reads its source only then, and only if somebody keeps the source alive (a reference, or `record_stream`).
- The model's output and its input ids are overwritten with garbage as soon as a step is sampled, as the next replay of
  a CUDA graph would overwrite them.
- Staging memory of input rows that is written while a copy from it may still run is an error.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import vllm.v1.worker.cpu.shm  # noqa: F401 - puts placeholders into torch.cuda as it is imported: before ours
from vllm.platforms.cpu import CpuPlatform

from omni_proto.pipeline.components import EngineKind
from omni_stage.engine import vllm_engine
from omni_stage.engine.arguments.engine_args import OmniEngineArgs, build_engine_args
from omni_stage.vllm_adapter.ar.input_rows import InputRowStore
from omni_stage.vllm_adapter.ar.runner import OmniARRunnerMixin
from omni_stage.vllm_adapter.worker import host_memory
from support.tiny_text import TextEngine

GARBAGE_ID = 3
"""What stands in the input ids after a step: a token, for padding may be looked up."""


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill with what no test expects."""
    return tensor.fill_(float("nan") if tensor.is_floating_point() else -12345)


@dataclass
class Seen:
    """What the stand-in saw, so that a test can tell that the way was taken."""

    side_copies: int = 0
    staged_steps: int = 0
    poisoned_steps: int = 0
    lost_sources: int = 0


@dataclass(eq=False)
class Stream:
    """What was enqueued and nobody has waited for."""

    copies: list[Callable[[], None]] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)
    reading: set[int] = field(default_factory=set)
    """Host memory that copies to the device may still read, by its address."""

    def wait_stream(self, other: Stream) -> None:
        """Computing is synchronous here: all of it is done by then."""


_main = Stream()
_current: list[Stream] = [_main]
_streams: weakref.WeakKeyDictionary[Any, Stream] = weakref.WeakKeyDictionary()


def _stream_of(stream: Any) -> Stream:
    # vLLM's CPU runner puts placeholders of its own in place of the streams that it makes.
    return stream if isinstance(stream, Stream) else _streams.setdefault(stream, Stream())


class Event:
    """Waits for what was enqueued before it was recorded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._stream = _main
        self._copies: list[Callable[[], None]] = []
        self._reading: set[int] = set()

    def record(self, stream: Any = None) -> None:
        self._stream = _current[-1] if stream is None else _stream_of(stream)
        self._copies = list(self._stream.copies)
        self._reading = set(self._stream.reading)

    def synchronize(self) -> None:
        for copy in self._copies:
            if copy in self._stream.copies:
                self._stream.copies.remove(copy)
                copy()
        self._stream.reading -= self._reading
        self._copies, self._reading = [], set()


@contextmanager
def _on_stream(stream: Any) -> Iterator[None]:
    _current.append(_stream_of(stream))
    try:
        yield
    finally:
        _current.pop()


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


_seen: list[Seen] = []
"""Of what runs meanwhile, the innermost last."""


@contextmanager
def _counting() -> Iterator[Seen]:
    _seen.append(Seen())
    try:
        yield _seen[-1]
    finally:
        _seen.pop()


@contextmanager
def async_scheduling() -> Iterator[Seen]:
    """Engines that are built and run meanwhile, with async_scheduling=True, schedule asynchronously on the CPU.

    Within another one, counts go to the inner.
    """
    if _seen:
        with _counting() as seen:
            yield seen
        return
    tensor_to, tensor_copy = torch.Tensor.to, torch.Tensor.copy_

    def enqueue(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen = _seen[-1]
        seen.side_copies += 1
        stream = _current[-1]
        alive = weakref.ref(source)
        poison(target)

        def copy() -> None:
            kept = alive()
            if kept is None:
                # The allocator has given the memory to somebody else.
                seen.lost_sources += 1
                return
            with torch.inference_mode():
                tensor_copy(target, kept)
            stream.kept[:] = [tensor for tensor in stream.kept if tensor is not kept]

        stream.copies.append(copy)
        return target

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("non_blocking") and _current[-1] is not _main:
            return enqueue(self, torch.empty_like(self))
        return tensor_to(self, *args, **kwargs)

    def copy_(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if non_blocking and _current[-1] is not _main:
            return enqueue(source, self)
        if non_blocking:
            _main.reading.add(_address(source))
        return tensor_copy(self, source, non_blocking)

    def record_stream(self: torch.Tensor, stream: Any) -> None:
        _stream_of(stream).kept.append(self)

    check_platform = CpuPlatform.check_and_update_config.__func__

    def keep_async(cls: type, config: Any) -> None:
        wanted = config.scheduler_config.async_scheduling
        check_platform(cls, config)
        config.scheduler_config.async_scheduling = wanted

    sample_tokens = OmniARRunnerMixin.sample_tokens

    def sample_and_poison(self: Any, grammar_output: Any) -> Any:
        state = self.execute_model_state
        output = sample_tokens(self, grammar_output)
        if not self.use_async_scheduling:
            # vLLM waits for the step's tokens here, and so for all that came before them.
            _main.reading.clear()
        elif state is not None:
            _seen[-1].poisoned_steps += 1
            with torch.inference_mode():
                poison(state.hidden_states)
                self.input_ids.gpu.fill_(GARBAGE_ID)
        return output

    def pinned_empty(shape: Any, dtype: torch.dtype) -> torch.Tensor:
        return poison(torch.empty(tuple(shape), dtype=dtype))

    fill = InputRowStore.fill

    def fill_checked(self: Any, spans: Any, num_input_tokens: int) -> None:
        assert self._staging is not self.buffer
        assert _address(self._staging) not in _main.reading, "a copy may still read the staging memory"
        fill(self, spans, num_input_tokens)
        _seen[-1].staged_steps += 1

    cuda = {
        "Event": Event,
        "Stream": Stream,
        "current_stream": lambda device=None: _current[-1],
        "stream": _on_stream,
    }
    with (
        mock.patch.object(CpuPlatform, "check_and_update_config", classmethod(keep_async)),
        mock.patch.multiple(torch.cuda, **cuda),
        mock.patch.object(torch.Tensor, "to", to),
        mock.patch.object(torch.Tensor, "copy_", copy_),
        mock.patch.object(torch.Tensor, "record_stream", record_stream),
        mock.patch.object(host_memory, "copies_overlap", return_value=True),
        mock.patch.object(host_memory, "pinned_empty", pinned_empty),
        mock.patch.object(OmniARRunnerMixin, "sample_tokens", sample_and_poison),
        mock.patch.object(InputRowStore, "fill", fill_checked),
        _counting() as seen,
    ):
        yield seen
    _main.reading.clear()


SCHEDULING = (
    # Parity tests and pipelines schedule like this, as vLLM does on CPUs.
    pytest.param("synchronous", marks=pytest.mark.full),
    "asynchronous",
)


@contextmanager
def scheduling(kind: str) -> Iterator[dict[str, bool]]:
    """Engine arguments of a kind of SCHEDULING, for engines that are built and run meanwhile. Checks what they did."""
    if kind == "synchronous":
        yield {"async_scheduling": False}
        return
    with async_scheduling() as seen:
        yield {"async_scheduling": True}
    # Tokens at least take the side stream; what nobody kept alive was read all the same.
    assert seen.poisoned_steps > 0
    assert seen.side_copies >= seen.poisoned_steps
    assert seen.lost_sources == 0


@contextmanager
def text_engine(
    checkpoint: Path, kind: str, omni: dict[str, Any] | None = None, **overrides: Any
) -> Iterator[TextEngine]:
    """Yields a TextEngine that schedules as `kind` of SCHEDULING says."""
    with scheduling(kind) as arguments:
        engine = TextEngine(checkpoint, omni, **arguments, **overrides)
        yield engine
        engine.close()


@contextmanager
def stage_scheduling(kind: str) -> Iterator[None]:
    """Yields the same for stages: their autoregressive engines, built meanwhile, schedule as `kind` says."""

    def build(*args: Any, **kwargs: Any) -> OmniEngineArgs:
        engine_args = build_engine_args(*args, **kwargs)
        autoregressive = engine_args.kind is EngineKind.AUTOREGRESSIVE
        return dataclasses.replace(engine_args, async_scheduling=autoregressive and arguments["async_scheduling"])

    with scheduling(kind) as arguments, mock.patch.object(vllm_engine, "build_engine_args", build):
        yield
