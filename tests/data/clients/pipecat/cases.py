"""Runs Pipecat's unmodified OpenAI services with a gateway: cases.py URL MODEL. Prints each case's result as JSON."""

import asyncio
import base64
import json
import sys

from pipecat.frames.frames import (
    ErrorFrame,
    LLMContextFrame,
    LLMTextFrame,
    MetricsFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
)
from pipecat.metrics.metrics import LLMUsageMetricsData
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import run_test

URL, MODEL = sys.argv[1:]
QUESTION = {"role": "user", "content": "Tell me what the weather is like."}
METRICS = PipelineParams(enable_metrics=True, enable_usage_metrics=True, audio_out_sample_rate=24_000)


async def run(service, frame):
    down, up = await run_test(service, frames_to_send=[frame], pipeline_params=METRICS, start_timeout=30)
    errors = [one.error for one in (*down, *up) if isinstance(one, ErrorFrame)]
    return down, errors


async def text(model=MODEL):
    settings = OpenAILLMService.Settings(model=model, seed=5, max_completion_tokens=12)
    service = OpenAILLMService(api_key="none", base_url=URL, settings=settings)
    down, errors = await run(service, LLMContextFrame(LLMContext([QUESTION])))
    measured = [data for frame in down if isinstance(frame, MetricsFrame) for data in frame.data]
    return {
        "text": "".join(frame.text for frame in down if isinstance(frame, LLMTextFrame)),
        "tokens": sum(data.value.completion_tokens for data in measured if isinstance(data, LLMUsageMetricsData)),
        "errors": errors,
    }


async def speech(model=MODEL):
    settings = OpenAITTSService.Settings(model=model, voice="alloy")
    service = OpenAITTSService(api_key="none", base_url=URL, settings=settings, sample_rate=24_000)
    down, errors = await run(service, TTSSpeakFrame("Good morning!"))
    audio = [frame for frame in down if isinstance(frame, TTSAudioRawFrame)]
    return {
        "pcm": base64.b64encode(b"".join(frame.audio for frame in audio)).decode(),
        "forms": sorted({(frame.sample_rate, frame.num_channels) for frame in audio}),
        "stopped": sum(isinstance(frame, TTSStoppedFrame) for frame in down),
        "errors": errors,
    }


async def main():
    gave = {
        "text": await text(),
        "unknown_model": await text("nobody"),
        "speech": await speech(),
        "speech_by_alias": await speech("tts-1"),
        "speech_of_nobody": await speech("nobody"),
    }
    sys.stdout.write(json.dumps(gave))


asyncio.run(main())
