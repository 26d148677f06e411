"""Calls a gateway with OpenAI's own client until stdin has a line, like load.py.

It runs on the node, because the client pod does not have OpenAI's client. The argument is
{"url", "model", "streams", "timeout_s", "most_rest_s"} as JSON. Each caller alternates between a streamed chat and
speech. The client does not retry, so that every failure shows.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import openai

SPEECH = "Good morning!"


async def chat(client: openai.AsyncOpenAI, model: str, seed: int) -> str:
    """Sends one streamed chat request. Returns what is wrong with the answer; empty if nothing is."""
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Tell me about the sea."}],
        max_completion_tokens=16,
        seed=seed,
        stream=True,
    )
    reason, text = "", ""
    async for chunk in stream:
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        reason = chunk.choices[0].finish_reason or reason if chunk.choices else reason
    return (
        "" if text and reason in ("stop", "length") else f"a chat without its end: {reason!r}, {len(text)} characters"
    )


async def speak(client: openai.AsyncOpenAI, model: str) -> str:
    """Sends one speech request. Returns what is wrong with the answer; empty if nothing is."""
    async with client.audio.speech.with_streaming_response.create(
        model=model, input=SPEECH, voice="alloy", response_format="pcm"
    ) as answer:
        audio = await answer.read()
    return "" if any(audio) else f"{len(audio)} bytes of silence"


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

    async def ask(client: openai.AsyncOpenAI, stream: int) -> None:
        number = stream
        while not ended.is_set():
            number += 1
            started = time.monotonic()
            try:
                model = settings["model"]
                wrong = await (speak(client, model) if number % 2 else chat(client, model, 1000 * stream + number))
            except openai.OpenAIError as error:
                wrong = f"{type(error).__name__}: {error} {error.__cause__ or ''}"
            took = time.monotonic() - started
            if wrong:
                failures.append({"message": wrong, "after_s": round(started - began, 1), "took_s": round(took, 1)})
                await asyncio.sleep(0.2)
            else:
                durations.append(took)
                say("answered")
                await asyncio.sleep(min(took, settings["most_rest_s"]))

    async with openai.AsyncOpenAI(
        base_url=settings["url"], api_key="none", max_retries=0, timeout=settings["timeout_s"]
    ) as client:
        say("started")
        await asyncio.gather(*(ask(client, stream) for stream in range(settings["streams"])))
    return {"answered": len(durations), "failures": failures, "longest_s": max(durations, default=0.0)}


if __name__ == "__main__":
    say(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
    sys.stdin.read()  # `kubectl exec` may lose what a program writes just before it ends
