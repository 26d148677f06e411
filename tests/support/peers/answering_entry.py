"""An entry stage for tests of client programs: answers with the same two words and a little audio.

If the model must call tools, it calls the first one twice. A request for an unknown voice is rejected, and one with the
seed FAILING_SEED fails after the words. With LONG_SEED there is a minute of audio, and with CUT_SEED the stage that
speaks reaches its maximum length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from omni_proto.rpc.options import USER_KEY
from omni_proto.stage.v1 import events_pb2, prompt_pb2, sampling_pb2, stage_service_pb2 as pb, stage_service_pb2_grpc

WORDS = ("Hello", " there")
PCM = b"\x00\x01" * 2400
PCM_PIECES = (PCM[:1000], PCM[1000:])
"""The first piece has a length at which base64 needs padding."""
FAILING_SEED = 13
LONG_SEED = 14
CUT_SEED = 15
LONG_PIECES = [bytes(48_000)] * 60
ARGUMENTS = '{"city": "Ulm"}'
VOICES = ("", "Chelsie", "Ethan")


class Starts(list[pb.Start]):
    """The Start of every request so far."""

    def __init__(self) -> None:
        super().__init__()
        self.traceparents: list[str] = []
        """The `traceparent` of each request's metadata; "" if it has none."""
        self.users: list[str] = []
        """The user of each request's metadata; "" if it has none."""


class _Entry(stage_service_pb2_grpc.StageServiceServicer):
    def __init__(self, media: Sequence[str] = ()) -> None:
        self.starts = Starts()
        self._media = media

    def Generate(self, requests: Iterator[pb.GenerateRequest], context: Any) -> Iterator[pb.GenerateResponse]:
        start = next(requests).start
        self.starts.append(start)
        metadata = dict(context.invocation_metadata())
        self.starts.traceparents.append(metadata.get("traceparent", ""))
        self.starts.users.append(metadata.get(USER_KEY, ""))
        if start.audio.voice not in VOICES:
            context.abort_with_status(rpc_status.to_status(_unknown_voice()))
        yield pb.GenerateResponse(stage="thinker", accepted=events_pb2.Accepted(request_id="r1"))
        for request in requests:
            if request.WhichOneof("message") == "end":
                break
        if start.chat.tool_choice.mode == prompt_pb2.TOOL_MODE_REQUIRED:
            earlier = sum(len(one.tool_calls) for one in start.chat.messages)
            for index in range(2):
                call = events_pb2.ToolCallDelta(index=index, id=f"call{earlier + index}", name=start.chat.tools[0].name)
                yield pb.GenerateResponse(stage="thinker", tool_call=call)
                call = events_pb2.ToolCallDelta(index=index, arguments=ARGUMENTS)
                yield pb.GenerateResponse(stage="thinker", tool_call=call)
            yield pb.GenerateResponse(stage="thinker", summary=events_pb2.Summary())
            return
        for word in WORDS:
            yield pb.GenerateResponse(stage="thinker", text=events_pb2.TextDelta(text=word))
        if start.seed == FAILING_SEED:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the engine died")
        sent = 0
        pieces = LONG_PIECES if start.seed == LONG_SEED else PCM_PIECES
        for index, piece in enumerate(pieces):
            audio = events_pb2.AudioChunk(
                encoding=sampling_pb2.AUDIO_ENCODING_PCM_S16LE,
                sample_rate_hz=24_000,
                channels=1,
                data=piece,
                first_sample=sent // 2,
                last=index == len(pieces) - 1,
            )
            sent += len(piece)
            yield pb.GenerateResponse(stage="token2wav", audio=audio)
        cut = start.seed == CUT_SEED
        spoke = events_pb2.FINISH_REASON_LENGTH if cut else events_pb2.FINISH_REASON_STOP
        yield pb.GenerateResponse(stage="talker", finished=events_pb2.StageFinished(finish_reason=spoke))
        outcome = events_pb2.StageOutcome(stage="talker", finish_reason=spoke)
        yield pb.GenerateResponse(stage="thinker", summary=events_pb2.Summary(stages=[outcome]))

    def GetStage(self, request: pb.GetStageRequest, context: Any) -> pb.GetStageResponse:
        return pb.GetStageResponse(
            stage="thinker",
            stages=["thinker", "talker", "token2wav"],
            outputs=[sampling_pb2.MODALITY_TEXT],
            pipeline_outputs=[sampling_pb2.MODALITY_TEXT, sampling_pb2.MODALITY_AUDIO],
            voices=VOICES[1:],
            text=pb.TextAbilities(given_reply=True, structured_output=True, tool_call_parser="hermes"),
            random_weights=True,
            media=self._media,
        )


def _unknown_voice() -> status_pb2.Status:
    info = error_details_pb2.ErrorInfo(reason="INVALID_REQUEST", domain="omnipipeline.io", metadata={"stage": "talker"})
    detail = any_pb2.Any()
    detail.Pack(info)
    return status_pb2.Status(code=grpc.StatusCode.INVALID_ARGUMENT.value[0], message="no such voice", details=[detail])


@contextmanager
def serve_entry(
    credentials: grpc.ServerCredentials | None = None, media: Sequence[str] = (), port: int = 0
) -> Iterator[tuple[int, Starts]]:
    """Serves on 127.0.0.1 inside the block, with TLS if there are credentials. media: kinds that the stage reads. port:
    0 takes a free one.

    Yields the port, and a list that gets the Start of every request.
    """
    entry = _Entry(media)
    server = grpc.server(ThreadPoolExecutor(4))
    stage_service_pb2_grpc.add_StageServiceServicer_to_server(entry, server)
    if credentials is None:
        port = server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        port = server.add_secure_port(f"127.0.0.1:{port}", credentials)
    server.start()
    try:
        yield port, entry.starts
    finally:
        server.stop(grace=None).wait()
