"""One process of a side: `python -m benchmarks.transport.peer SIDE serve`, or `... SIDE send PORT`.

Server and sender exchange JSON lines with the bench. A server prints its port, and then answers every line with its CPU
seconds. A sender runs the command in each line, and answers with its seconds and CPU seconds. Each side has its own
processes, so that no side's threads disturb another's.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.transport.payload import CHUNK_ROWS, make_rows
from omni_stage.process.startup import tune_malloc


@dataclass(frozen=True, slots=True)
class Side:
    """How a side runs: its module, and the arguments of the module's `serve` and `connect`."""

    module: str
    server: tuple[tuple[str, Any], ...] = ()
    client: tuple[tuple[str, Any], ...] = ()
    tuned: bool = True
    """Whether its processes tune malloc, as the stage server does."""
    shares_connection: bool = True
    """Whether a row travels on the same connection as bulk that is sent meanwhile."""


TCP, OMNI = "raw TCP", "omni stream"
FLIGHT, FLIGHT_WHOLE = "Arrow Flight, 1 MiB", "Arrow Flight"
SIDES = {
    TCP: Side("tcp", (("checked", True),), (("checked", True),), shares_connection=False),
    "raw TCP without checksum": Side("tcp", (("checked", False),), (("checked", False),), shares_connection=False),
    OMNI: Side("omni"),
    "ZeroMQ with msgpack": Side("zeromq", shares_connection=False),
    FLIGHT: Side("flight", client=(("batch_rows", CHUNK_ROWS),)),
    FLIGHT_WHOLE: Side("flight", client=(("batch_rows", 0),)),
    "one protobuf message": Side("naive", tuned=False),
}


def main() -> None:
    """Run the server or the sender of a side until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("role", choices=("serve", "send"))
    parser.add_argument("port", nargs="?", type=int, default=0)
    arguments = parser.parse_args()
    side = SIDES[arguments.side]
    if side.tuned:
        tune_malloc()
    module = importlib.import_module(f"benchmarks.transport.{side.module}")
    if arguments.role == "serve":
        threading.Thread(target=_answer_cpu, daemon=True).start()
        module.serve(_say, **dict(side.server))
    else:
        _obey(module.connect(arguments.port, **dict(side.client)))


def _answer_cpu() -> None:
    for _ in sys.stdin:
        _say(time.process_time())
    os._exit(0)  # the bench has ended


def _obey(client: Any) -> None:
    row = _rows(1)
    for line in sys.stdin:
        command = json.loads(line)
        data = _rows(command["rows"])
        began = time.process_time()
        if command["do"] == "transfers":
            seconds = client.transfers(data, command["count"])
        else:
            seconds = client.round_trips(row, command["count"], data if command["rows"] > 1 else None)
        _say({"seconds": seconds, "cpu": time.process_time() - began})
    os._exit(0)


_made: dict[int, Any] = {}


def _rows(count: int) -> Any:
    """Returns uint8 [count * ROW_BYTES]. It is made once per count."""
    if count not in _made:
        _made[count] = make_rows(count).reshape(-1).view("uint8")
    return _made[count]


def _say(value: Any) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
