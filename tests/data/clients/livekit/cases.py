"""Runs LiveKit's unmodified OpenAI plugin with a gateway: cases.py URL MODEL. Prints each case's result as JSON."""

import asyncio
import base64
import json
import sys

from livekit.agents import APIStatusError, utils
from livekit.agents.llm import ChatContext
from livekit.plugins import openai

URL, MODEL = sys.argv[1:]


async def speech(model=MODEL, form="pcm"):
    tts = openai.TTS(model=model, voice="alloy", base_url=URL, api_key="none", response_format=form)
    tts.prewarm()
    try:
        frame = await tts.synthesize("Good morning!").collect()
    except APIStatusError as error:
        return {"status": error.status_code, "code": error.body["code"]}
    finally:
        await tts.aclose()
    return {"rate": frame.sample_rate, "channels": frame.num_channels, "pcm": base64.b64encode(frame.data).decode()}


async def text():
    llm = openai.LLM(model=MODEL, base_url=URL, api_key="none", max_completion_tokens=12, extra_body={"seed": 5})
    chat = ChatContext.empty()
    chat.add_message(role="user", content="Tell me what the weather is like.")
    said, tokens = "", 0
    async with llm.chat(chat_ctx=chat) as stream:
        async for chunk in stream:
            said += (chunk.delta and chunk.delta.content) or ""
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    await llm.aclose()
    return {"text": said, "tokens": tokens}


async def main():
    async with utils.http_context.open():
        gave = {
            "text": await text(),
            # For OpenAI's oldest model names the plugin requests bytes, for any other name events.
            "speech_as_events": await speech(),
            "speech_as_bytes": await speech("tts-1"),
            "speech_as_mp3": await speech("tts-1", "mp3"),
            "speech_of_nobody": await speech("nobody"),
        }
    sys.stdout.write(json.dumps(gave))


asyncio.run(main())
