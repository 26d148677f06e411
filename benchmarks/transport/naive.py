"""The obvious implementation: a blocking unary gRPC call with the whole tensor in one protobuf message."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures

import grpc
import numpy as np

from benchmarks.transport.lanes import BlockingClient, Client, Lane
from benchmarks.transport.payload import ROW_BYTES, checksum, verify
from omni_proto.stage.v1.tensors_pb2 import TensorChunk

_METHOD = "Send"
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


def serve(announce: Callable[[int], None]) -> None:
    """Receive one tensor per call."""

    def receive(message: TensorChunk, _: grpc.ServicerContext) -> bytes:
        verify(np.frombuffer(message.data, np.uint8), message.crc32c)
        return b"+"

    server = grpc.server(futures.ThreadPoolExecutor(4), options=_OPTIONS)
    handler = grpc.unary_unary_rpc_method_handler(receive, request_deserializer=TensorChunk.FromString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Naive", {_METHOD: handler}),))
    announce(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    server.wait_for_termination()


def connect(port: int) -> Client:
    """Returns a client with one channel for all lanes."""
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)
    call = channel.unary_unary(f"/bench.Naive/{_METHOD}", request_serializer=TensorChunk.SerializeToString)

    def send(data: np.ndarray) -> None:
        rows = len(data) // ROW_BYTES
        call(TensorChunk(name="x", rows=rows, last=True, crc32c=checksum(data), data=data.tobytes()))

    return BlockingClient(lambda: Lane(send, lambda: None))
