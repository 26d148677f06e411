"""Compares the HTTP gateway with vLLM's own OpenAI server for text, and with gRPC for first audio."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.gateway import speech, text
from benchmarks.gateway.checkpoint import HIDDEN_1024, SHAPES, TINY
from benchmarks.harness.report import Options, Report
from benchmarks.tokens.processes import start_callers
from omni_cli.weights.demo import fetch_demo_weights

ROUNDS: Final = 6
TEXT = "a text model with a hidden size of 1,024"
TINY_TEXT = "a tiny text model"
CPU = "processor time of each process for a token, tiny text model"
SMOLLM2: Final = "SmolLM2-135M-Instruct"
TRAINED = f"trained weights: {SMOLLM2}"
TRAINED_CPU = f"processor time of each process for a token, {SMOLLM2}"
SPEECH = "first audio of a paced pipeline"
NOTES: Final = [
    f"{TEXT}: Qwen2 with {SHAPES[HIDDEN_1024].layers} layers; {TINY_TEXT}: {SHAPES[TINY].layers} layer of "
    f"{SHAPES[TINY].hidden}. Random weights, float32. Both sides load the same files into the same vLLM with the same "
    "engine arguments and environment, one OpenMP thread. Both run the whole time, and get requests in turn.",
    f"{SMOLLM2}: the weights of `make demo`, float32. Its ratio is over the time of all processes but the client's.",
    "vLLM's server is vllm.entrypoints.openai.api_server, which `vllm serve` runs: an API process and an engine. Ours "
    "is gateway, stage server and engine. One load client sends the same streaming chat completions to both, over "
    "connections that are open beforehand. All requests of a run start together.",
    "A run starts when both sides are idle, because a worker of vLLM's server polls for a second after its last step.",
    "An answer counts only if the server's own usage has all tokens.",
    "Processor time: the best round for each number of requests. Client, servers and engines share two cores.",
    f"First audio: engines that keep the GPU timing of the table {speech.TABLE}. A chat with text and audio (pcm16) "
    "through the gateway, and the same request by the Python client over gRPC, in turn, from the same process.",
]


def fetch_llm() -> Path:
    """Returns the folder of the demo's text model, which is downloaded the first time. Raises WeightsError, OSError."""
    return fetch_demo_weights(lambda *_: None).llm


def measure(options: Options) -> Report:
    """Compare text with vLLM's server for three models, and then first audio with gRPC. Returns the tables."""
    rounds = options.rounds or ROUNDS
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        callers = stack.enter_context(start_callers("benchmarks.gateway.load"))
        texts = text.run_random(folder, callers, rounds, HIDDEN_1024, text.TOKENS)
        tinies = text.run_random(folder, callers, rounds, TINY, text.TINY_TOKENS)
        trained = text.run_text(folder, callers, rounds, SMOLLM2, fetch_llm(), text.REAL_TOKENS)
        speeches = speech.run_speech(folder, callers, options.rounds)
    tables = {
        TEXT: text.text_rows(texts),
        TINY_TEXT: text.text_rows(tinies),
        CPU: text.cpu_rows(tinies),
        TRAINED: text.text_rows(trained),
        TRAINED_CPU: text.cpu_rows(trained),
        SPEECH: speech.speech_rows(speeches),
    }
    return Report(
        tables,
        [*text.find_ratios(texts), *text.find_cpu_ratios(trained, SMOLLM2), *speech.find_ratios(speeches)],
        list(NOTES),
    )
