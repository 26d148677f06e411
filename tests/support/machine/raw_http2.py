"""A minimal HTTP/2 client that can misbehave: it can leave connections and gRPC calls unfinished.

gRPC's own clients cannot do this, because they send complete messages only. This client has only what its tests need,
without Huffman coding, priorities or padding.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field
from typing import Self

from support.processes.polling import PATIENCE_S

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
_INITIAL_WINDOW_SIZE = 4
_FRAME = 16_384


def grpc_message(body: bytes, announced: int | None = None, *, compressed: bool = False) -> bytes:
    """Returns a message with gRPC's prefix.

    `announced` is the length in the prefix (default: that of the body). `compressed` sets only the prefix's flag.
    """
    return struct.pack(">BI", compressed, len(body) if announced is None else announced) + body


def _literal(name: str, value: str) -> bytes:
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


@dataclass
class RawConnection:
    """One blocking connection with a timeout. It reads the server's frames only while a method waits for something."""

    port: int
    peer: str = "127.0.0.1"
    receive_window: int | None = None
    """The flow-control window that it grants to each of the server's streams, in bytes (default: HTTP/2's 65,535)."""
    ended: dict[int, str] = field(default_factory=dict)
    """Stream -> how the server ended it: `trailers` or `reset`."""
    alive: bool = True
    going_away: bool = False
    """Whether the server announced that it closes the connection (GOAWAY)."""

    def __post_init__(self) -> None:
        self._windows: dict[int, int] = {}
        self._window, self._initial = 65_535, 65_535
        self._stream = -1
        self._buffer = b""
        self._socket = socket.create_connection(("127.0.0.1", self.port), 10, (self.peer, 0))
        granted = b"" if self.receive_window is None else struct.pack(">HI", _INITIAL_WINDOW_SIZE, self.receive_window)
        self._socket.sendall(PREFACE + self._frame(SETTINGS, 0, 0, granted))
        self.read(lambda: self._initial != 65_535 or self._settled)

    _settled = False

    def call(self, method: str, *headers: tuple[str, str]) -> int:
        """Begins a call, with additional headers. Returns the number of its stream."""
        self._stream += 2
        self._windows[self._stream] = self._initial
        block = b"".join(
            _literal(*item)
            for item in (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", method),
                (":authority", "stage"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                *headers,
            )
        )
        self._send(self._frame(HEADERS, END_HEADERS, self._stream, block))
        return self._stream

    def send(self, stream: int, data: bytes, *, end: bool = False) -> int:
        """Sends data. Returns the number of bytes sent.

        Stops early if the call or the connection ends, or if a flow-control window stays closed and the server sends
        nothing for a second.
        """
        sent = 0
        while sent < len(data) and self.alive and stream not in self.ended:
            if not self.read(lambda: self._window > 0 and self._windows[stream] > 0, 1.0):
                break
            size = min(self._window, self._windows[stream], _FRAME, len(data) - sent)
            last = end and sent + size == len(data)
            self._send(self._frame(DATA, END_STREAM if last else 0, stream, data[sent : sent + size]))
            sent += size
            self._window -= size
            self._windows[stream] -= size
        return sent

    def ping(self) -> None:
        """Sends a PING frame."""
        self._send(self._frame(PING, 0, 0, bytes(8)))

    def read(self, until: object, timeout_s: float = PATIENCE_S) -> bool:
        """Reads frames until `until()` is true, nothing arrives for `timeout_s` or the connection ends.

        Returns the value of `until()`.
        """
        assert callable(until)
        self._socket.settimeout(timeout_s)
        while not until():
            if not self.alive or not self._read_some():
                return bool(until())
        return True

    def close(self) -> None:
        self.alive = False
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            self.alive = False

    def _read_some(self) -> bool:
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        if not data:
            self.alive = False
            return False
        self._buffer += data
        while len(self._buffer) >= 9:
            size = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + size:
                break
            kind, flags = self._buffer[3], self._buffer[4]
            stream = int.from_bytes(self._buffer[5:9], "big") & 0x7FFFFFFF
            self._on_frame(kind, flags, stream, self._buffer[9 : 9 + size])
            self._buffer = self._buffer[9 + size :]
        return True

    def _on_frame(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for offset in range(0, len(body), 6):
                name, value = struct.unpack_from(">HI", body, offset)
                if name == _INITIAL_WINDOW_SIZE:
                    for known in self._windows:
                        self._windows[known] += value - self._initial
                    self._initial = value
            self._settled = True
            self._send(self._frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._send(self._frame(PING, ACK, 0, body))
        elif kind == GOAWAY:
            self.going_away = True
        elif kind == WINDOW_UPDATE:
            grown = int.from_bytes(body, "big") & 0x7FFFFFFF
            if stream == 0:
                self._window += grown
            elif stream in self._windows:
                self._windows[stream] += grown
        elif kind == RST_STREAM:
            self.ended.setdefault(stream, "reset")
        elif kind == HEADERS and flags & END_STREAM:
            self.ended.setdefault(stream, "trailers")

    @staticmethod
    def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
        return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
