"""Defines a side's sender: the lanes that carry tensors, and the two ways in which they are timed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

PAUSE_S = 0.001
"""Pause between two rows that are sent while bulk is sent: about the pace of a decoding engine."""
BULK_LEAD_S = 0.05


@dataclass(frozen=True, slots=True)
class Lane:
    """Sends tensors, uint8 [rows * ROW_BYTES], one after another. Its functions block."""

    post: Callable[[np.ndarray], object]
    """Sends a tensor, immediately or after the tensors before it."""
    wait: Callable[[], object]
    """Returns once the receiver has received and verified the next of the sent tensors."""


class Client(Protocol):
    """One side's sender, connected to its server."""

    def transfers(self, data: np.ndarray, count: int) -> list[float]:
        """Sends `count` tensors back to back and waits until the last has arrived. Returns [seconds per tensor]."""

    def round_trips(self, row: np.ndarray, count: int, bulk: np.ndarray | None) -> list[float]:
        """Returns for each of `count` rows the seconds from sending it to its answer.

        If `bulk` is given, it is sent repeatedly at the same time.
        """


class BlockingClient:
    """A client with blocking lanes, which `open_lane` makes. A second lane sends the bulk in its own thread."""

    def __init__(self, open_lane: Callable[[], Lane]) -> None:
        self._open_lane = open_lane
        self._first = open_lane()
        self._second: Lane | None = None

    def transfers(self, data: np.ndarray, count: int) -> list[float]:
        lane = self._first
        start = time.perf_counter()
        for _ in range(count):
            lane.post(data)
        for _ in range(count):
            lane.wait()
        return [(time.perf_counter() - start) / count]

    def round_trips(self, row: np.ndarray, count: int, bulk: np.ndarray | None) -> list[float]:
        if bulk is None:
            return [_round_trip(self._first, row) for _ in range(count)]
        self._second = lane = self._second or self._open_lane()
        stop = threading.Event()

        def send_bulk() -> None:
            while not stop.is_set():
                _round_trip(lane, bulk)

        sender = threading.Thread(target=send_bulk)
        sender.start()
        with contextlib.ExitStack() as stack:
            stack.callback(sender.join)
            stack.callback(stop.set)
            time.sleep(BULK_LEAD_S)
            seconds = []
            for _ in range(count):
                seconds.append(_round_trip(self._first, row))
                time.sleep(PAUSE_S)
            return seconds


def _round_trip(lane: Lane, data: np.ndarray) -> float:
    start = time.perf_counter()
    lane.post(data)
    lane.wait()
    return time.perf_counter() - start
