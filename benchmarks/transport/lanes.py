"""Defines a side's sender: the lanes that carry its tensors, and its two measurements, transfers and round trips.

A lane is one stream of tensors to the receiver. Bulk means large tensors that are sent while round trips are measured.
"""

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
        """Sends a tensor `count` times back to back, and waits until the last one has arrived.

        Returns a list of one number, the seconds per tensor. `data`: uint8 [rows * ROW_BYTES].
        """

    def round_trips(self, row: np.ndarray, count: int, bulk: np.ndarray | None) -> list[float]:
        """Sends a row `count` times. Returns for each time the seconds from sending the row to its answer.

        If `bulk` is given, that tensor is sent repeatedly at the same time.
        """


class BlockingClient:
    """A client with blocking lanes that `open_lane` makes. A second lane, in its own thread, sends the bulk."""

    def __init__(self, open_lane: Callable[[], Lane]) -> None:
        self._open_lane = open_lane
        self._first = open_lane()
        self._second: Lane | None = None

    def transfers(self, data: np.ndarray, count: int) -> list[float]:
        """See Client."""
        lane = self._first
        start = time.perf_counter()
        for _ in range(count):
            lane.post(data)
        for _ in range(count):
            lane.wait()
        return [(time.perf_counter() - start) / count]

    def round_trips(self, row: np.ndarray, count: int, bulk: np.ndarray | None) -> list[float]:
        """See Client."""
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
