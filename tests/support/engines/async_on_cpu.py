"""Asynchronous scheduling on the CPU, with copies that finish as late as a GPU may finish them.

vLLM's CPU platform switches asynchronous scheduling off (`platforms/cpu.py`). So tests on a CPU would not run the code
path of GPUs: batch queue, placeholders for tokens, outputs that are awaited one step later, pinned memory.
`async_scheduling()` keeps asynchronous scheduling on and simulates the device:

- The target of a copy to the host on a side stream contains garbage until `synchronize` is called on an event that was
  recorded after the copy. The copy reads its source only then, and only if a reference or `record_stream` keeps the
  source alive.
- The model's output and its input ids are overwritten with garbage as soon as a step is sampled, as the next replay of
  a CUDA graph would overwrite them.
- Writing to the staging memory of input rows while a copy from it may still run is an error.
- A copy to the device that our code does not wait for, from memory that is not pinned, is an error.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import vllm.v1.worker.cpu.shm  # noqa: F401 - puts placeholders into torch.cuda when it is imported
from vllm.platforms.cpu import CpuPlatform

from omni_proto.pipeline.components import EngineKind
from omni_stage.engine import vllm_engine
from omni_stage.engine.arguments.engine_args import OmniEngineArgs, build_engine_args
from omni_stage.vllm_adapter.ar.input_rows import InputRowStore
from omni_stage.vllm_adapter.ar.runner import OmniARRunnerMixin
from omni_stage.vllm_adapter.worker import host_memory
from support.engines.tiny_text import TextEngine

GARBAGE_ID = 3
"""Written to the input ids after a step. It is a valid token, because the embeddings of padding may be looked up."""


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fills the tensor with values that no test expects."""
    return tensor.fill_(float("nan") if tensor.is_floating_point() else -12345)


@dataclass
class Seen:
    """Counts by which a test can tell that the asynchronous code path ran."""

    side_copies: int = 0
    staged_steps: int = 0
    poisoned_steps: int = 0
    lost_sources: int = 0


@dataclass(eq=False)
class Stream:
    """Copies that were enqueued and not waited for yet."""

    copies: list[Callable[[], None]] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)
    reading: set[int] = field(default_factory=set)
    """Addresses of host memory that copies to the device may still read."""

    def wait_stream(self, other: Stream) -> None:
        """Does nothing: computation is synchronous here, so it has finished already."""


_main = Stream()
_current: list[Stream] = [_main]
_streams: weakref.WeakKeyDictionary[Any, Stream] = weakref.WeakKeyDictionary()


def _stream_of(stream: Any) -> Stream:
    # vLLM's CPU runner creates placeholders instead of streams.
    return stream if isinstance(stream, Stream) else _streams.setdefault(stream, Stream())


class Event:
    """An event that waits for the copies which were enqueued before it was recorded."""

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
"""Counts of the active `async_scheduling` blocks, the innermost last."""


@contextmanager
def _counting() -> Iterator[Seen]:
    _seen.append(Seen())
    try:
        yield _seen[-1]
    finally:
        _seen.pop()


@contextmanager
def async_scheduling() -> Iterator[Seen]:
    """Yields counts. Engines built and run in the block with async_scheduling=True schedule asynchronously on the CPU.

    Of nested blocks, only the innermost one's counts grow.
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
                # The allocator may have reused the source's memory.
                seen.lost_sources += 1
                return
            with torch.inference_mode():
                tensor_copy(target, kept)
            stream.kept[:] = [tensor for tensor in stream.kept if tensor is not kept]

        stream.copies.append(copy)
        return target

    pinned: set[int] = set()

    def check_pinned(source: torch.Tensor) -> None:
        caller = str(sys._getframe(2).f_globals["__name__"])
        assert not caller.startswith("omni_stage.") or _address(source) in pinned, "the copy may wait for the device"

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("non_blocking") and _current[-1] is not _main:
            return enqueue(self, torch.empty_like(self))
        if kwargs.get("non_blocking"):
            check_pinned(self)
        return tensor_to(self, *args, **kwargs)

    def copy_(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if non_blocking and _current[-1] is not _main:
            return enqueue(source, self)
        if non_blocking:
            check_pinned(source)
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
            # vLLM waits for the step's tokens here, and therefore for all earlier copies.
            _main.reading.clear()
        elif state is not None:
            _seen[-1].poisoned_steps += 1
            with torch.inference_mode():
                poison(state.hidden_states)
                self.input_ids.gpu.fill_(GARBAGE_ID)
        return output

    def pinned_empty(shape: Any, dtype: torch.dtype) -> torch.Tensor:
        memory = poison(torch.empty(tuple(shape), dtype=dtype))
        pinned.add(_address(memory))
        return memory

    fill = InputRowStore.fill

    def fill_checked(self: Any, spans: Any, num_input_tokens: int) -> None:
        assert self._staging is not self.buffer
        assert _address(self._staging) not in _main.reading, "a copy may still read the staging memory"
        fill(self, spans, num_input_tokens)
        _seen[-1].staged_steps += 1

    cuda: dict[str, Any] = {
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
    # Marked full: the parity tests and pipelines already schedule synchronously, as vLLM does on CPUs.
    pytest.param("synchronous", marks=pytest.mark.full),
    "asynchronous",
)


@contextmanager
def scheduling(kind: str) -> Iterator[dict[str, bool]]:
    """Yields engine arguments for a kind of SCHEDULING. Build and run engines in the block.

    After the block, checks that asynchronous engines really scheduled asynchronously.
    """
    if kind == "synchronous":
        yield {"async_scheduling": False}
        return
    with async_scheduling() as seen:
        yield {"async_scheduling": True}
    # At least the tokens of each step are copied on a side stream, and no source was freed before it was read.
    assert seen.poisoned_steps > 0
    assert seen.side_copies >= seen.poisoned_steps
    assert seen.lost_sources == 0


@contextmanager
def text_engine(
    checkpoint: Path, kind: str, omni: dict[str, Any] | None = None, **overrides: Any
) -> Iterator[TextEngine]:
    """Yields a TextEngine with the scheduling `kind`, which is one of SCHEDULING."""
    with scheduling(kind) as arguments:
        engine = TextEngine(checkpoint, omni, **arguments, **overrides)
        yield engine
        engine.close()


@contextmanager
def stage_scheduling(kind: str) -> Iterator[None]:
    """Makes the autoregressive engines of stages that are built in the block use the scheduling `kind`."""

    def build(*args: Any, **kwargs: Any) -> OmniEngineArgs:
        engine_args = build_engine_args(*args, **kwargs)
        autoregressive = engine_args.kind is EngineKind.AUTOREGRESSIVE
        return dataclasses.replace(engine_args, async_scheduling=autoregressive and arguments["async_scheduling"])

    with scheduling(kind) as arguments, mock.patch.object(vllm_engine, "build_engine_args", build):
        yield
