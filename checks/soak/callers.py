"""32 hostile clients in one process: `python -m checks.soak.callers TARGET` (attackers.py starts it).

They send costly forms of the text, decompression bombs, false sizes and damaged media, inside Start and in chunks, with
and without an announced size. They also send chats with far too many parts, prompts of a million characters, and
minutes of silent audio. Half of the calls are cancelled if they last longer than a random time of up to half a second.
The process writes how the calls ended to stdout as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator

import grpc

from omni_proto.rpc.channels import open_aio_channel
from omni_proto.rpc.options import channel_options
from omni_proto.rpc.status import STATUS_DETAILS_KEY
from omni_proto.stage.v1 import prompt_pb2, sampling_pb2, stage_service_pb2 as pb
from support.media.hostile_files import flac, flat_png, many_scans
from support.media.hostile_media import CORPUS

CALLERS = 32
PIECE = 1 << 20
END = pb.GenerateRequest(end=pb.End())
Request = tuple[pb.GenerateRequest, list[bytes]]
"""A Start message, and the media that follow it in chunks."""
GENERATE = "/omni_proto.stage.v1.StageService/Generate"


def media_request(media: list[tuple[str, bytes]], *, chunked: bool, announced: int = 0) -> Request:
    """Returns a request with these media, inside Start or in chunks. `announced` is the decoded size that it claims."""
    start = pb.Start(modalities=[sampling_pb2.MODALITY_TEXT])
    start.sampling["thinker"].max_tokens = 1
    message = start.chat.messages.add(role="user")
    sent = []
    for number, (kind, data) in enumerate(media):
        medium = prompt_pb2.Media(data=b"" if chunked else data)
        if chunked:
            medium.chunked.CopyFrom(
                prompt_pb2.MediaReference(media_id=number, total_bytes=len(data), decoded_bytes=announced)
            )
            sent.append(data)
        message.parts.add(**{kind: medium})
    return pb.GenerateRequest(start=start), sent


def form_requests() -> list[Request]:
    """Returns requests whose structured output is expensive, fits nothing, or is not allowed here."""
    repeated = "(((a){0,1000}){0,1000}){0,1000}b"
    forms = [
        sampling_pb2.StructuredOutput(json_schema=json.dumps({"type": "string", "pattern": repeated})),
        sampling_pb2.StructuredOutput(json_schema=json.dumps({"type": "string", "pattern": "((a){0,90}){0,90}b"})),
        sampling_pb2.StructuredOutput(json_schema=json.dumps({"type": "string", "maxLength": 3000})),
        sampling_pb2.StructuredOutput(json_schema='{"$ref": "#"}'),
        sampling_pb2.StructuredOutput(regex=repeated),
        sampling_pb2.StructuredOutput(grammar='root ::= root root | "a"'),
    ]
    modalities = [sampling_pb2.MODALITY_TEXT]
    return [
        (pb.GenerateRequest(start=pb.Start(text="a", structured_output=form, modalities=modalities)), [])
        for form in forms
    ]


def requests() -> list[Request]:
    """Returns the requests from which the clients choose at random."""
    made = [(medium.kind, medium.make()) for medium in CORPUS]
    found = [media_request([one], chunked=False) for one in made if len(one[1]) <= 4 << 20]
    found += [media_request([one], chunked=True, announced=announced) for one in made for announced in (0, 1000)]
    found += [
        media_request([("audio", flac(300))] * 6, chunked=False),
        media_request([("image", flat_png(4096, 4096))] * 4, chunked=False),
        media_request([("image", many_scans(45, 4000))] * 2, chunked=False),
    ]
    found += form_requests()
    many = pb.Start()
    for _ in range(1024):
        many.chat.messages.add(role="user").parts.extend([prompt_pb2.ContentPart(text="a")] * 512)
    found += [(pb.GenerateRequest(start=many), [])] * 3
    return found + long_texts()


def long_texts() -> list[Request]:
    """Returns prompts of a million characters, which no context holds: as text, as chats and as given replies."""
    found: list[Request] = []
    for piece in ("a", " ", "word ", "\u0e01", "\U0001f600", "<|im_start|>"):
        text = (piece * (1 << 20))[: 1 << 20]
        chat, reply = pb.Start(), pb.Start()
        for begin in range(0, len(text), 2048):
            chat.chat.messages.add(role="user").parts.add(text=text[begin : begin + 2048])
        reply.chat.messages.add(role="user").parts.add(text="hi")
        reply.reply.text = text
        found += [(pb.GenerateRequest(start=start), []) for start in (pb.Start(text=text), chat, reply)]
    return found


async def send(request: pb.GenerateRequest, chunks: list[bytes]) -> AsyncIterator[pb.GenerateRequest]:
    yield request
    for number, data in enumerate(chunks):
        for offset in range(0, len(data), PIECE):
            piece = prompt_pb2.MediaChunk(media_id=number, offset=offset, data=data[offset : offset + PIECE])
            yield pb.GenerateRequest(media=piece)
    yield END


async def harm(target: str, number: int, pool: list[Request], until: float, codes: Counter[str]) -> None:
    """Sends one client's requests until the time `until`, and counts in `codes` how they ended."""
    rng = random.Random(number)
    async with open_aio_channel(target, options=(*channel_options(), ("caller", number))) as channel:
        generate = channel.stream_stream(
            GENERATE,
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        while time.monotonic() < until:
            call = generate(send(*rng.choice(pool)), timeout=20)
            leaves = rng.random() < 0.5
            try:
                async with asyncio.timeout(rng.uniform(0, 0.5) if leaves else 25):
                    async for _ in call:
                        pass
                codes["OK"] += 1
            except TimeoutError:
                call.cancel()
                codes["left"] += 1
            except grpc.aio.AioRpcError as error:
                told = STATUS_DETAILS_KEY in dict(error.trailing_metadata() or ())
                # Without details the status comes from this side's gRPC: the stage ended a call that was still sending.
                codes[error.code().name if told else "ended while sending"] += 1


async def attack(target: str, pool: list[Request], seconds: float) -> Counter[str]:
    """Runs all clients concurrently for `seconds`. Returns how many calls ended in each way."""
    codes: Counter[str] = Counter()
    until = time.monotonic() + seconds
    await asyncio.gather(*(harm(target, number, pool, until, codes) for number in range(CALLERS)))
    return codes


def main(target: str) -> None:
    """Reads a number of seconds from each line of stdin, attacks for that long, and prints the outcomes as a line of
    JSON. Ends when stdin ends."""
    pool = requests()
    say("ready")
    for line in sys.stdin:
        say(json.dumps(asyncio.run(attack(target, pool, float(line)))))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # SCHED_IDLE: the clients' own work only uses CPU time that the stages leave over.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    main(sys.argv[1])
