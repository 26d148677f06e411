"""Sends the requests of runs, in a separate process: `python -m benchmarks.tokens.caller`.

For each line of JSON {port, count, tokens, spread_s} on stdin it opens `count` calls over spread_s seconds, and prints
{late_us, arrived_us, rows_late_us}. These are how late each text arrived, when it arrived, and how late each row
reached the talker, which reports this. All are in microseconds, the arrivals on the monotonic clock.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from typing import Any

import uvloop

from omni_proto.rpc.channels import open_aio_channel
from omni_proto.stage.v1 import sampling_pb2, stage_service_pb2
from omni_stage.service.wire import GENERATE, SERVICE_NAME

TALKER = "talker"


class Callers:
    """The results of all calls of a run."""

    def __init__(self) -> None:
        self.late_us: list[int] = []
        self.arrived_us: list[int] = []
        self.rows_late_us: list[list[int]] = []

    async def call(self, method: Any, tokens: int, wait_s: float) -> None:
        """Send one request after `wait_s` seconds, and read its answer to the end."""
        await asyncio.sleep(wait_s)
        sampling = {"thinker": sampling_pb2.SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0)}
        start = stage_service_pb2.Start(text="hello", sampling=sampling)
        call = method(timeout=120)
        await call.write(stage_service_pb2.GenerateRequest(start=start))
        await call.write(stage_service_pb2.GenerateRequest(end=stage_service_pb2.End()))
        await call.done_writing()
        async for response in call:
            if response.WhichOneof("message") != "text":
                continue
            if response.stage == TALKER:
                self.rows_late_us.append(json.loads(response.text.text))
                continue
            now = int(time.monotonic() * 1e6)
            for due in response.text.text.split():
                self.arrived_us.append(now)
                self.late_us.append(now - int(due) if due.isdigit() else 0)


async def run(port: int, count: int, tokens: int, spread_s: float) -> Callers:
    """Make all calls on one channel. Returns what they received."""
    callers = Callers()
    async with open_aio_channel(f"127.0.0.1:{port}", options=()) as channel:
        method = channel.stream_stream(
            f"/{SERVICE_NAME}/{GENERATE}",
            request_serializer=stage_service_pb2.GenerateRequest.SerializeToString,
            response_deserializer=stage_service_pb2.GenerateResponse.FromString,
        )
        await asyncio.gather(*(callers.call(method, tokens, spread_s * number / count) for number in range(count)))
    return callers


def main() -> None:
    """Send the requests of each line of stdin, and print what they received."""
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            callers = runner.run(run(**json.loads(line)))
            print(json.dumps(vars(callers)), flush=True)


if __name__ == "__main__":
    main()
