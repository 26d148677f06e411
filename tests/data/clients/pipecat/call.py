"""A call of ten turns by Pipecat's unmodified OpenAI Realtime service: call.py URL MODEL PCM. PCM: file with a spoken
sentence, 24 kHz. Prints as JSON what the client saw."""

import asyncio
import json
import sys
from pathlib import Path

from pipecat.adapters.schemas.function_schema import FunctionSchema
from pipecat.adapters.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMContextFrame,
    TTSAudioRawFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

URL, MODEL, PCM = sys.argv[1:]
SPEECH = Path(PCM).read_bytes()
TURNS = 10
RATE_HZ = 24_000
PIECE = RATE_HZ // 5
seen, ended = [], asyncio.Queue()
_parse = events.parse_server_event


def parse(text):
    """Pipecat's own parser, which raises on an unknown type. It keeps what it reads."""
    seen.append(json.loads(text))
    if seen[-1]["type"] == "response.done":
        ended.put_nowait(True)
    return _parse(text)


events.parse_server_event = parse


class Listener(FrameProcessor):
    def __init__(self):
        super().__init__()
        self.audio = 0
        self.audible = asyncio.Event()

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.audio += len(frame.audio)
            self.audible.set()
        await self.push_frame(frame, direction)


class Errors(FrameProcessor):
    """Sees the errors, which go upstream."""

    def __init__(self):
        super().__init__()
        self.errors = []

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if isinstance(frame, ErrorFrame):
            self.errors.append(frame.error)
        await self.push_frame(frame, direction)


async def main():
    tool = FunctionSchema(
        "weather", "Tells the weather.", {"city": {"type": "string", "enum": ["Ulm", "Bonn"]}}, ["city"]
    )
    context = LLMContext([{"role": "user", "content": "This is turn 0."}], tools=ToolsSchema([tool]))
    settings = OpenAIRealtimeLLMService.Settings(model=MODEL, system_instruction="Be brief.")
    service = OpenAIRealtimeLLMService(
        api_key="none", base_url=f"{URL.replace('http', 'ws', 1)}/realtime", settings=settings
    )
    listener, errors = Listener(), Errors()
    worker = PipelineWorker(
        Pipeline([errors, service, listener]), params=PipelineParams(enable_metrics=True, enable_usage_metrics=True)
    )
    called = []

    async def answer(params):
        called.append(params.arguments)
        await params.result_callback("sunny")

    service.register_function("weather", answer)
    runner = WorkerRunner()
    await runner.add_workers(worker)
    running = asyncio.ensure_future(runner.run())
    await worker.queue_frame(LLMContextFrame(context))
    await ended.get()
    for turn in range(1, TURNS):
        if turn % 5 == 2:
            wishes = events.ResponseProperties(tool_choice="required", max_output_tokens=400)
            await service.send_client_event(events.ResponseCreateEvent(response=wishes))
            await ended.get()
            # An error that does not end the call: nothing is left to cancel.
            await service.send_client_event(events.ResponseCancelEvent())
            continue
        for at in range(0, len(SPEECH), PIECE):
            await worker.queue_frame(InputAudioRawFrame(SPEECH[at : at + PIECE], RATE_HZ, 1))
        if turn % 5 == 4:
            listener.audible.clear()
            await listener.audible.wait()
            await worker.queue_frame(InterruptionFrame())
        await ended.get()
    await worker.queue_frame(EndFrame())
    await running
    sys.stdout.write(
        json.dumps({"events": seen, "errors": errors.errors, "audio": listener.audio / 2 / RATE_HZ, "called": called})
    )


asyncio.run(main())
