"""`make bench CASE=voice`: our voice beside Piper's own HTTP server, with the same weights and texts and cores.

Ours is the demo's pipeline behind the gateway: generic/llm reads the text and hands it to voice/vits. Piper's server
(GPL) has a virtual environment of its own in the user's cache. Both run the whole time and get requests in turn.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from rich.console import Console

from benchmarks.harness.interleave import median_ratio, take_turns
from benchmarks.harness.report import Options, Report, Row
from benchmarks.harness.verdict import Ratio
from omni_cli.commands.demo import SPOKEN_PIPELINE
from omni_cli.local.pipeline import LocalOptions, LocalPipeline
from omni_cli.local.ports import pick_ports
from omni_cli.local.progress import make_progress
from omni_cli.weights.demo import fetch_demo_weights
from omni_proto.pipeline import load_pipeline

REQUIREMENTS: Final = ("piper-tts==1.8.0", "flask==3.1.3")
OURS, PIPER = "omnipipeline", "piper.http_server"
AT_ONCE: Final = (1, 8)
ROUNDS: Final = 5
RATE_HZ: Final = 22_050
HEADER_BYTES: Final = 44
"""Of a WAV file, which precedes Piper's samples."""
TEXT: Final = (
    "The library opens again on Monday morning. The children built a castle of wet sand, and the farmer sold apples, "
    "honey and fresh eggs. Our neighbor repaired the broken fence himself. Please close the door behind you."
)
TABLE: Final = "a text of four sentences"
NOTES: Final = [
    "Both speak with the weights of the voice joe. Piper's phonemes come from espeak-ng, ours from the CMU dictionary, "
    "so the audio differs in length; figures are for a second of audio. Each side has its default number of threads.",
    "Piper's server sends the whole file at once. Ours streams, and its text model reads the text first.",
]


@dataclass(frozen=True, slots=True)
class Side:
    """A running server."""

    port: int
    path: str
    body: Mapping[str, Any]
    header_bytes: int
    list_pids: Callable[[], list[int]]

    def cpu_s(self) -> float:
        """Returns the processor seconds so far of all processes."""
        times = [psutil.Process(pid).cpu_times() for pid in self.list_pids()]
        return sum(float(one.user + one.system) for one in times)


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of a side: requests that began together."""

    first_s: float
    """Median time to the first audio."""
    rtf: float
    """Seconds until all were done, for each second of audio of all."""
    cpu_rtf: float
    """Processor seconds for each second of audio."""


Samples = dict[tuple[str, int], list[Sample]]


def measure(options: Options) -> Report:
    """Ask both sides in turn. Returns the table, and our figures relative to Piper's."""
    weights = fetch_demo_weights(lambda *_: None)
    models = {"llm": str(weights.llm), "voice": str(weights.voice)}
    (voice,) = weights.voice.glob("*.onnx")
    samples: Samples = defaultdict(list)
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_piper(install_piper(), voice, Path(folder)) as piper,
        serve_ours(models) as ours,
    ):
        sides = {OURS: ours, PIPER: piper}
        for number in range(-1, options.rounds or ROUNDS):  # the first round warms up
            for count in AT_ONCE:
                for name in take_turns(list(sides), number):
                    sample = ask(sides[name], count)
                    if number >= 0:
                        samples[name, count].append(sample)
                        print(f"{name}, {count} at once: first audio {sample.first_s:.2f} s", flush=True)
    return Report({TABLE: list(make_rows(samples))}, find_ratios(samples), NOTES)


def ask(side: Side, count: int) -> Sample:
    """Send requests that begin together. Returns their figures."""
    before, began = side.cpu_s(), time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda _: speak(side), range(count)))
    wall, audio = time.perf_counter() - began, sum(seconds for _, seconds in answers)
    first = statistics.median(first for first, _ in answers)
    return Sample(first, wall / audio, (side.cpu_s() - before) / audio)


def speak(side: Side) -> tuple[float, float]:
    """Returns the seconds to the first audio, and those of the audio. Raises RuntimeError if the server refuses."""
    connection = http.client.HTTPConnection("127.0.0.1", side.port, timeout=600)
    began = time.perf_counter()
    connection.request("POST", side.path, json.dumps(side.body), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        raise RuntimeError(f"{side.path} answered {answer.status}: {answer.read()[:200]!r}")
    size, first = len(answer.read(side.header_bytes + 2)), time.perf_counter() - began
    size += len(answer.read())
    connection.close()
    return first, (size - side.header_bytes) / 2 / RATE_HZ


def make_rows(samples: Samples) -> Iterator[Row]:
    """Yields a row for each side and number of requests, with medians."""
    for (name, count), rounds in sorted(samples.items(), key=lambda item: (item[0][1], item[0][0])):
        yield {
            "at once": count,
            "side": name,
            "first audio, s": round(statistics.median(one.first_s for one in rounds), 3),
            "real-time factor": round(statistics.median(one.rtf for one in rounds), 3),
            "processor time a second": round(statistics.median(one.cpu_rtf for one in rounds), 3),
        }


def find_ratios(samples: Samples) -> list[Ratio]:
    """Returns our figures relative to Piper's of the same round. Only first audio has a goal: ours is streamed."""
    ratios = []
    for count in AT_ONCE:
        ours, piper = samples[OURS, count], samples[PIPER, count]
        first = median_ratio([one.first_s for one in ours], [one.first_s for one in piper])
        cost = median_ratio([one.rtf for one in ours], [one.rtf for one in piper])
        ratios += [
            Ratio(f"first audio x Piper's, {count} at once", round(first, 3), at_most=1.0, goal=True, tolerance=0.3),
            Ratio(f"real-time factor x Piper's, {count} at once", round(cost, 3), lower_is_better=True, tolerance=0.3),
        ]
    return ratios


@contextmanager
def serve_ours(models: Mapping[str, str]) -> Iterator[Side]:
    """Runs the demo's pipeline and a gateway until the block ends."""
    pipeline = load_pipeline(SPOKEN_PIPELINE)
    (port,) = pick_ports(1)
    with LocalPipeline(pipeline, LocalOptions(model_path=models, http_port=port)) as running:
        with make_progress(Console(quiet=True), list(models)) as progress:
            running.start(progress)
        body = {"model": pipeline.metadata.name, "input": TEXT, "voice": "joe", "response_format": "pcm"}
        yield Side(port, "/v1/audio/speech", body, 0, lambda: [process.pid for process in running.list_processes()])


@contextmanager
def serve_piper(python: Path, voice: Path, folder: Path) -> Iterator[Side]:
    """Runs Piper's server until the block ends. Raises RuntimeError if it does not start."""
    (port,) = pick_ports(1)
    command = [
        str(python),
        "-m",
        "piper.http_server",
        "--model",
        str(voice),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with (folder / "piper.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    side = Side(port, "/synthesize", {"text": TEXT}, HEADER_BYTES, lambda: [process.pid])
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                speak(side)
                break
            except OSError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    said = (folder / "piper.log").read_text(errors="replace")[-500:]
                    raise RuntimeError(f"Piper's server did not start: {said}") from error
                time.sleep(0.2)
        yield side
    finally:
        process.terminate()
        process.wait(30)


def install_piper() -> Path:
    """Installs Piper's server, if it is not there yet. Returns the environment's Python. Raises CalledProcessError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omnipipeline"
    folder = cache / f"piper-{'-'.join(one.partition('==')[2] for one in REQUIREMENTS)}"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
        (folder / "installed").touch()
    return python
