"""One process of the case: `python -m benchmarks.tokens.stage STAGE.yaml`, or `... bare [PORT]`, or `... sink`.

With STAGE.yaml it is a stage server as `python -m omni_stage serve` runs it, but with the paced engine (paced.py). It
writes its ports to a file with the suffix .address.json.

`bare` is a grpc.aio server without our code. It writes messages at the same pace, to measure the cost of gRPC itself.
If the port of a `sink` is given, it also writes rows to that process, which drops them. `bare` and `sink` print their
port.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import uvloop

from benchmarks.tokens.paced import ROW, STEP_S, PacedEngine
from omni_proto.rpc.channels import open_aio_channel
from omni_proto.rpc.options import server_options
from omni_proto.stage.v1 import events_pb2, stage_service_pb2
from omni_proto.stage_config import load_stage_config
from omni_stage.process.stage_log import configure_stage_logging
from omni_stage.process.startup import tune_malloc
from omni_stage.service.server.stage_server import run_stage
from omni_stage.service.wire import GENERATE, SERVICE_NAME

BARE, SINK = "bare", "sink"
ROW_STEPS = 4
"""Steps whose rows the bare server sends in one message. They take 40 ms, as long as a stage server waits for rows."""
_ROWS = bytes(ROW * 2 * ROW_STEPS)


def main(name: str, sink: str = "") -> int:
    """Run the process that the arguments name (see above). Returns its exit code."""
    tune_malloc()
    # As in the stage server, the garbage collector skips all objects that exist after the imports.
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if name in (BARE, SINK):
            runner.run(_serve_bare(name, sink))
            return 0
        file = Path(name)
        config = load_stage_config(file)
        configure_stage_logging(config.stage, "text")
        logging.getLogger().setLevel(logging.WARNING)
        return int(runner.run(run_stage(config, PacedEngine, file.with_suffix(".address.json"))))


async def _serve_bare(name: str, sink: str) -> None:
    """Serve until the process ends. A call gets as many texts as its Start's max_tokens."""
    server = grpc.aio.server(options=server_options())
    if name == SINK:
        handler = grpc.stream_stream_rpc_method_handler(_read_all)
    else:
        channel = open_aio_channel(f"127.0.0.1:{sink}") if sink else None
        method = None if channel is None else channel.stream_stream(f"/{SERVICE_NAME}/{GENERATE}")
        handler = grpc.stream_stream_rpc_method_handler(
            partial(_write_paced, method), request_deserializer=stage_service_pb2.GenerateRequest.FromString
        )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, {GENERATE: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    clock.start()
    print(json.dumps({"grpc": port}), flush=True)
    await server.wait_for_termination()


class _Clock:
    """Gives all waiting calls the step's message, once per step."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[bytes]] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        due = time.monotonic()
        while True:
            due += STEP_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            text = events_pb2.TextDelta(text=f"{int(due * 1e6)} ")
            message = stage_service_pb2.GenerateResponse(stage="thinker", text=text).SerializeToString()
            waiting, self.waiting = self.waiting, []
            for future in waiting:
                future.set_result(message)

    def wait(self) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return future


clock = _Clock()


async def _write_paced(sink: Any, messages: AsyncIterator[stage_service_pb2.GenerateRequest], context: Any) -> None:
    start = (await anext(messages)).start
    rows = None if sink is None else sink()
    for number in range(start.sampling["thinker"].max_tokens):
        await context.write(await clock.wait())
        if rows is not None and number % ROW_STEPS == ROW_STEPS - 1:
            await rows.write(_ROWS)
    if rows is not None:
        await rows.done_writing()


async def _read_all(messages: AsyncIterator[bytes], context: Any) -> None:
    async for _ in messages:
        pass


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
