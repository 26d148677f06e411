"""Raw TCP as a side, with which all other sides are compared.

A chunk consists of a 16-byte head and of rows, which are received directly into the tensor's buffer.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.transport.lanes import BlockingClient, Client, Lane
from benchmarks.transport.payload import CHUNK_ROWS, ROW_BYTES, checksum, verify

_HEAD = struct.Struct("<QII")
"""Size of the whole tensor in bytes, size of this chunk, and checksum of this chunk."""
_CHUNK = CHUNK_ROWS * ROW_BYTES


def serve(announce: Callable[[int], None], *, checked: bool) -> None:
    """Receive tensors on every connection, and answer each tensor with one byte."""
    listener = socket.create_server(("127.0.0.1", 0))
    announce(listener.getsockname()[1])
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_receive_all, args=(connection, checked), daemon=True).start()


def connect(port: int, *, checked: bool) -> Client:
    """Returns a client with a connection for each lane."""

    def open_lane() -> Lane:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Lane(partial(_send, connection, checked), partial(_wait, connection))

    return BlockingClient(open_lane)


def _send(connection: socket.socket, checked: bool, data: np.ndarray) -> None:
    for start in range(0, len(data), _CHUNK):
        part = data[start : start + _CHUNK]
        head = _HEAD.pack(len(data), len(part), checksum(part) if checked else 0)
        sent = connection.sendmsg([head, part])
        if sent < len(head) + len(part):
            connection.sendall(part[sent - len(head) :])


def _wait(connection: socket.socket) -> None:
    if connection.recv(1) != b"+":
        raise ConnectionError("no answer")


def _receive_all(connection: socket.socket, checked: bool) -> None:
    head = bytearray(_HEAD.size)
    while _fill(connection, memoryview(head)):
        total, size, expected = _HEAD.unpack(head)
        tensor = np.empty(total, np.uint8)
        start = 0
        while True:
            part = tensor[start : start + size]
            _fill(connection, part.data)
            if checked:
                verify(part, expected)
            start += size
            if start == total:
                break
            _fill(connection, memoryview(head))
            _, size, expected = _HEAD.unpack(head)
        connection.sendall(b"+")


def _fill(connection: socket.socket, buffer: memoryview) -> bool:
    """Fill the buffer from a socket. Returns False if the peer has closed the connection."""
    filled = 0
    while filled < len(buffer):
        count = connection.recv_into(buffer[filled:])
        if count == 0:
            return False
        filled += count
    return True
