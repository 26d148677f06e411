"""Runs the three parts of the case, and makes the tables."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.gateway import speech, text
from benchmarks.gateway.checkpoint import HIDDEN_1024, SHAPES, TINY
from benchmarks.report import Options, Report
from benchmarks.tokens.processes import start_callers

ROUNDS: Final = 6
TEXT = "a text model with a hidden size of 1,024"
TINY_TEXT = "a tiny text model"
CPU = "processor time of each process for a token, tiny text model"
SPEECH = "first audio of a paced pipeline"
NOTES: Final = [
    f"{TEXT}: Qwen2 with {SHAPES[HIDDEN_1024].layers} layers; {TINY_TEXT}: {SHAPES[TINY].layers} layer of "
    f"{SHAPES[TINY].hidden}. Random weights, float32. Both sides load the same files into the same vLLM with the same "
    "engine arguments and environment, one OpenMP thread; both run all the time, and are asked in turn.",
    "vLLM's server is vllm.entrypoints.openai.api_server, what `vllm serve` runs: an API process and an engine. Ours: "
    "gateway, stage server and engine. One load client, which knows neither, asks both for the same chat completions, "
    "streamed, over connections that are open beforehand; all requests of a run begin together.",
    "A run begins when both sides are idle: a worker of vLLM's server polls for a second after its last step.",
    "An answer counts only if the server's own usage says that all tokens came.",
    "Processor time: the best round of each number. Client, servers and engines share two cores.",
    f"First audio: engines that keep the pace of the table {speech.TABLE} on GPUs; chat with text and audio (pcm16) "
    "through the gateway, and the same request by the Python client over gRPC, in turn, from the same process.",
]


def measure(options: Options) -> Report:
    """Compare text with vLLM's server for two models, and then first audio with gRPC."""
    rounds = options.rounds or ROUNDS
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        callers = stack.enter_context(start_callers("benchmarks.gateway.load"))
        texts = text.run_text(folder, callers, rounds, HIDDEN_1024, text.TOKENS)
        tinies = text.run_text(folder, callers, rounds, TINY, text.TINY_TOKENS)
        speeches = speech.run_speech(folder, callers, options.rounds)
    tables = {
        TEXT: text.text_rows(texts),
        TINY_TEXT: text.text_rows(tinies),
        CPU: text.cpu_rows(tinies),
        SPEECH: speech.speech_rows(speeches),
    }
    return Report(tables, [*text.find_ratios(texts), *speech.find_ratios(speeches)], list(NOTES))
