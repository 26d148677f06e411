"""ZeroMQ over TCP as a side. A message has a frame with a msgpack head, and a frame with the tensor that is not copied
in Python."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import zmq

from benchmarks.transport.lanes import BlockingClient, Client, Lane
from benchmarks.transport.payload import ROW_BYTES, checksum, verify


def serve(announce: Callable[[int], None]) -> None:
    """Receive tensors from every peer, and answer each with one byte."""
    router = zmq.Context().socket(zmq.ROUTER)
    announce(router.bind_to_random_port("tcp://127.0.0.1"))
    while True:
        peer, head, body = router.recv_multipart(copy=False)
        described = msgspec.msgpack.decode(head.buffer)
        verify(np.frombuffer(body.buffer, np.uint8), described["crc32c"])
        router.send_multipart([peer.bytes, b"+"])


def connect(port: int) -> Client:
    """Returns a client with a socket for each lane, because a socket belongs to one thread."""
    context = zmq.Context()

    def open_lane() -> Lane:
        dealer = context.socket(zmq.DEALER)
        dealer.connect(f"tcp://127.0.0.1:{port}")

        def send(data: np.ndarray) -> None:
            head = {"name": "x", "row_offset": 0, "rows": len(data) // ROW_BYTES, "last": True}
            dealer.send_multipart([msgspec.msgpack.encode({**head, "crc32c": checksum(data)}), data], copy=False)

        return Lane(send, dealer.recv)

    return BlockingClient(open_lane)
