"""Calls a pipeline until stdin ends: `streams` concurrent callers, each with one request at a time.

The argument is {"target", "streams", "max_tokens", "timeout_s"} as JSON. When stdin ends, no new request is sent.
The script writes the line "started" before the first request. After the last request in flight has ended, it writes
{"answered", "failures": [{"code", "reason", "stage", "message", ...}], "longest_s"}.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from omni_proto.client import AsyncOmniClient, OmniRequestError


async def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Sends requests until stdin ends. Returns the result that the script writes."""
    began = time.monotonic()
    ended = asyncio.Event()
    asyncio.get_running_loop().run_in_executor(None, sys.stdin.read).add_done_callback(lambda _: ended.set())
    failures: list[dict[str, Any]] = []
    durations: list[float] = []

    async def ask(client: AsyncOmniClient, stream: int) -> None:
        number = 0
        while not ended.is_set():
            number += 1
            started = time.monotonic()
            try:
                result = await client.run(
                    raw_text="Tell me about the sea.",
                    seed=1000 * stream + number,
                    sampling={
                        "thinker": {"max_tokens": settings["max_tokens"], "ignore_eos": True},
                        "talker": {"max_tokens": settings["max_tokens"]},
                    },
                    timeout=settings["timeout_s"],
                )
            except OmniRequestError as error:
                failures.append(
                    {
                        "code": error.code.name,
                        "reason": error.reason,
                        "stage": error.stage,
                        "message": str(error),
                        "after_s": round(started - began, 1),
                        "took_s": round(time.monotonic() - started, 1),
                    }
                )
                await asyncio.sleep(0.2)
            else:
                if not result.text:
                    failures.append({"code": "", "reason": "NO_TEXT", "message": result.request_id})
                durations.append(time.monotonic() - started)

    async with AsyncOmniClient(settings["target"]) as client:
        sys.stdout.write("started\n")
        sys.stdout.flush()
        await asyncio.gather(*(ask(client, stream) for stream in range(settings["streams"])))
    return {"answered": len(durations), "failures": failures, "longest_s": max(durations, default=0.0)}


if __name__ == "__main__":
    json.dump(asyncio.run(main(json.loads(sys.argv[1]))), sys.stdout)
