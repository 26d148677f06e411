"""A call of ten turns by LiveKit's unmodified OpenAI plugin: call.py URL MODEL PCM. PCM: file with a spoken sentence,
24 kHz. Prints as JSON what the client saw."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Literal

from livekit import rtc
from livekit.agents import utils
from livekit.agents.llm import ChatContext, function_tool
from livekit.plugins import openai

URL, MODEL, PCM = sys.argv[1:]
SPEECH = Path(PCM).read_bytes()
TURNS = 10
RATE_HZ = 24_000
SAMPLES = RATE_HZ // 10


@function_tool
async def weather(city: Literal["Ulm", "Bonn"]) -> str:
    """Tells the weather."""
    return f"sunny in {city}"


class Call:
    def __init__(self, session):
        self.session = session
        self.events, self.errors, self.calls, self.texts = [], [], [], []
        self.audio_s = 0.0
        self.spoken = asyncio.Queue()
        session.on("openai_server_event_received", self.events.append)
        session.on("error", lambda error: self.errors.append((str(error.error.body or error.error), error.recoverable)))
        session.on("generation_created", lambda one: None if one.user_initiated else self.spoken.put_nowait(one))

    def say(self, text):
        """Adds a message of the user."""
        chat = self.session.chat_ctx.copy()
        chat.add_message(role="user", content=text)
        return self.session.update_chat_ctx(chat)

    async def speak(self, data):
        for at in range(0, len(data), 2 * SAMPLES):
            piece = data[at : at + 2 * SAMPLES]
            self.session.push_audio(rtc.AudioFrame(piece, RATE_HZ, 1, len(piece) // 2))

    async def hear(self, generation, cut=False):
        """Reads a whole answer, or interrupts it at its first words and keeps 100 ms of it."""
        async for message in generation.message_stream:

            async def read_audio(message=message):
                async for frame in message.audio_stream:
                    self.audio_s += frame.duration

            reader = asyncio.ensure_future(read_audio())
            said, is_cut = "", False
            async for text in message.text_stream:
                said += text
                if cut and not is_cut:
                    is_cut = True
                    self.session.interrupt()
                    self.session.truncate(message_id=message.message_id, modalities=["audio"], audio_end_ms=100)
            await reader
            self.texts.append(said)
        async for call in generation.function_stream:
            self.calls.append(call)


async def main():
    async with utils.http_context.open():
        model = openai.realtime.RealtimeModel(model=MODEL, voice="alloy", base_url=URL, api_key="none")
        session = model.session()
        call = Call(session)
        await session.update_instructions("Be brief.")
        await session.update_tools([weather])
        await session.update_chat_ctx(ChatContext.empty())
        for turn in range(TURNS):
            if turn % 5 == 3 and SPEECH:
                await call.speak(SPEECH)
                await call.hear(await call.spoken.get())
            elif turn % 5 == 4:
                await call.say("Tell me a very long story.")
                await call.hear(await session.generate_reply(), cut=True)
            elif turn % 5 == 2:
                await call.say("What is the weather in Ulm?")
                await call.hear(await session.generate_reply(tool_choice="required"))
            else:
                await call.say(f"This is turn {turn}.")
                await call.hear(await session.generate_reply())
        chat = session.chat_ctx.copy()
        del chat.items[0]
        await session.update_chat_ctx(chat)
        left = len(session.chat_ctx.items)
        await session.aclose()
    sys.stdout.write(
        json.dumps(
            {
                "events": call.events,
                "errors": call.errors,
                "calls": [[one.name, one.arguments] for one in call.calls],
                "texts": call.texts,
                "audio": call.audio_s,
                "left": left,
                "kept": len(chat.items),
            }
        )
    )


asyncio.run(main())
