"""Calls a pipeline until stdin has a line: `streams` concurrent callers, each with one request at a time.

The argument is {"target", "streams", "max_tokens", "timeout_s", "most_rest_s"} as JSON. After an answer a caller rests
as long as that took, and at most most_rest_s, so that pods that start beside the load have half of the CPU. After the
line on stdin no new request is sent. The script writes the line "started" before the first request, and "answered"
after each that was answered. After the last request in flight has ended, it writes
{"answered", "failures": [{"code", "reason", "stage", "message", ...}], "longest_s"}, and ends when stdin does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from omni_proto.client import AsyncOmniClient, OmniRequestError


def say(line: str) -> None:
    """Writes a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Sends requests until stdin has a line. Returns the result that the script writes."""
    began = time.monotonic()
    ended = asyncio.Event()
    asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline).add_done_callback(lambda _: ended.set())
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
                say("answered")
                await asyncio.sleep(min(durations[-1], settings["most_rest_s"]))

    async with AsyncOmniClient(settings["target"]) as client:
        say("started")
        await asyncio.gather(*(ask(client, stream) for stream in range(settings["streams"])))
    return {"answered": len(durations), "failures": failures, "longest_s": max(durations, default=0.0)}


if __name__ == "__main__":
    say(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
    sys.stdin.read()  # `kubectl exec` may lose what a program writes just before it ends
