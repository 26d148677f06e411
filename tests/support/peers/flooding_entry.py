"""An entry stage that answers most requests with two words, and some with endless text as fast as the client reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc.aio

from omni_proto.stage.v1 import events_pb2, sampling_pb2, stage_service_pb2 as pb, stage_service_pb2_grpc

WORDS: Final = ("Hello", " there")
ENDLESS: Final = "Never stop."
"""A request that contains this text gets an endless answer."""
_PIECE: Final = "word " * 200
STAGE: Final = "thinker"


class FloodingEntry(stage_service_pb2_grpc.StageServiceServicer):
    """The servicer. `endless` counts endless answers in progress, `endless_begun` those begun so far."""

    def __init__(self, pace_s: float = 0.0) -> None:
        """pace_s: seconds between the pieces of an endless answer."""
        self.pace_s = pace_s
        self.endless = 0
        self.endless_begun = 0

    async def Generate(
        self, requests: AsyncIterator[pb.GenerateRequest], context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        start = (await anext(aiter(requests))).start
        yield pb.GenerateResponse(stage=STAGE, accepted=events_pb2.Accepted(request_id="r1"))
        async for request in requests:
            if request.WhichOneof("message") == "end":
                break
        if ENDLESS in str(start):
            self.endless += 1
            self.endless_begun += 1
            try:
                while True:
                    yield _text(_PIECE)
                    # A write that fits into the buffers does not yield to the event loop.
                    await asyncio.sleep(self.pace_s)
            finally:
                self.endless -= 1
        for word in WORDS:
            yield _text(word)
        yield pb.GenerateResponse(stage=STAGE, summary=events_pb2.Summary())

    async def GetStage(self, request: pb.GetStageRequest, context: Any) -> pb.GetStageResponse:
        outputs = [sampling_pb2.MODALITY_TEXT]
        return pb.GetStageResponse(stage=STAGE, stages=[STAGE], outputs=outputs, pipeline_outputs=outputs)


def _text(text: str) -> pb.GenerateResponse:
    return pb.GenerateResponse(stage=STAGE, text=events_pb2.TextDelta(text=text))


@contextmanager
def serve_flood(pace_s: float = 0.0) -> Iterator[tuple[int, FloodingEntry]]:
    """Serves on 127.0.0.1 on a thread inside the block. Yields the port and the servicer. pace_s: see FloodingEntry."""
    entry = FloodingEntry(pace_s)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(options=[("grpc.max_concurrent_streams", 1000)])
        stage_service_pb2_grpc.add_StageServiceServicer_to_server(entry, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    try:
        yield port, entry
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(grace=None), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
