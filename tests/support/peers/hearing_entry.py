"""An entry stage for tests of transcripts: writes down the same words for any audio, and passes on the same answer.

Its description (GetStage) decides what it is: a stage that transcribes, or a model that follows instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from omni_proto.stage.v1 import events_pb2, sampling_pb2, stage_service_pb2 as pb, stage_service_pb2_grpc

HEARD = ("  Good", " morning", ", said Ada.", " Hello,", " Bob.\n")
SEGMENT_ENDS = {2: (0, 1240), 3: (1300, 3_725_061)}
"""After which word a segment ends, and its times in ms. The last word follows the last segment."""
ANSWER = "Good morning, Ada."
CUT_SEED = 15
FAILING_SEED = 13


class HearingEntry(stage_service_pb2_grpc.StageServiceServicer):
    """Keeps the Start of every request."""

    def __init__(self, **facts: Any) -> None:
        """facts: fields of the description, in place of those of a stage that transcribes in front of two others."""
        self.starts: list[pb.Start] = []
        self.described = pb.GetStageResponse(
            **{
                "stage": "asr",
                "stages": ["asr", "llm", "voice"],
                "outputs": [sampling_pb2.MODALITY_TRANSCRIPT],
                "pipeline_outputs": [
                    sampling_pb2.MODALITY_TEXT,
                    sampling_pb2.MODALITY_AUDIO,
                    sampling_pb2.MODALITY_TRANSCRIPT,
                ],
                "answering_stage": "llm",
                "media": ["audio"],
                "text": pb.TextAbilities(transcribes=True, times_words=True),
                **facts,
            }
        )

    def Generate(self, requests: Iterator[pb.GenerateRequest], context: Any) -> Iterator[pb.GenerateResponse]:
        start = next(requests).start
        self.starts.append(start)
        stage = self.described.stage
        yield pb.GenerateResponse(stage=stage, accepted=events_pb2.Accepted(request_id="r1"))
        for request in requests:
            if request.WhichOneof("message") == "end":
                break
        timed = '"timestamps": true' in start.chat.template_arguments
        is_transcript = sampling_pb2.MODALITY_TRANSCRIPT in self.described.outputs
        for number, word in enumerate(HEARD):
            delta = events_pb2.TextDelta(text=word)
            if timed and number in SEGMENT_ENDS:
                begin, end = SEGMENT_ENDS[number]
                delta.segment.CopyFrom(events_pb2.SpeechSegment(start_ms=begin, end_ms=end))
            if is_transcript:
                yield pb.GenerateResponse(stage=stage, transcript=delta)
            else:
                yield pb.GenerateResponse(stage=stage, text=delta)
        if is_transcript and (not start.modalities or sampling_pb2.MODALITY_TEXT in start.modalities):
            delta = events_pb2.TextDelta(text=ANSWER)
            yield pb.GenerateResponse(stage=self.described.answering_stage, text=delta)
        if start.seed == FAILING_SEED:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the engine died")
        reason = events_pb2.FINISH_REASON_LENGTH if start.seed == CUT_SEED else events_pb2.FINISH_REASON_STOP
        usage = events_pb2.Usage(prompt_tokens=4, completion_tokens=9)
        finished = events_pb2.StageFinished(
            finish_reason=reason, usage=usage, notes=["the audio has gaps"], language="de"
        )
        yield pb.GenerateResponse(stage=stage, finished=finished)
        outcome = events_pb2.StageOutcome(stage=stage, finish_reason=reason, usage=usage)
        yield pb.GenerateResponse(stage=stage, summary=events_pb2.Summary(stages=[outcome]))

    def GetStage(self, request: pb.GetStageRequest, context: Any) -> pb.GetStageResponse:
        return self.described


@contextmanager
def serve_hearing(**facts: Any) -> Iterator[tuple[int, HearingEntry]]:
    """Serves on 127.0.0.1 inside the block. Yields the port and the stage. facts: see HearingEntry."""
    entry = HearingEntry(**facts)
    server = grpc.server(ThreadPoolExecutor(4))
    stage_service_pb2_grpc.add_StageServiceServicer_to_server(entry, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port, entry
    finally:
        server.stop(grace=None).wait()


def transcriber() -> dict[str, Any]:
    """Returns the description of a stage that transcribes, alone in its pipeline, and whose text is the answer."""
    text = [sampling_pb2.MODALITY_TEXT]
    return {"stages": ["asr"], "outputs": text, "pipeline_outputs": text, "answering_stage": "asr"}


def thinker(*media: str) -> dict[str, Any]:
    """Returns the description of a model that follows instructions."""
    return {**transcriber(), "stage": "thinker", "stages": ["thinker", "talker"], "answering_stage": "thinker"} | {
        "media": media,
        "text": pb.TextAbilities(),
    }
