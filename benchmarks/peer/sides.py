"""Runs the sides as processes: our pipeline, and vllm-omni."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from benchmarks.peer.checkpoint import CODEC_END
from benchmarks.peer.environment import environment
from benchmarks.peer.figures import Answer, Reference, Round, Start, deployment, parse_round
from benchmarks.pipeline.work import SEED, TALKER_TOKENS, THINKER_TOKENS
from omni_proto.client import AsyncOmniClient, AudioChunk
from omni_proto.client.events import TokenDelta

ENGINE = Path(__file__).with_name("engine.py")
START_LIMIT_S, ANSWER_LIMIT_S, STOP_LIMIT_S = 600, 300, 30
IDLE_S = 3.0
LINE_BYTES = 2**22
LOG_TAIL_LINES = 30
SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "thinker": {"temperature": 0, "max_tokens": THINKER_TOKENS},
    "talker": {"temperature": 0, "max_tokens": TALKER_TOKENS, "ignore_eos": True, "repetition_penalty": 1.0},
}


class Side(Protocol):
    """A side, which answers prompts that are sent together."""

    async def ask(self, prompts: Sequence[Reference]) -> Round:
        """Returns the answers, in the order of the prompts."""


@dataclass(frozen=True, slots=True)
class Ours:
    """A running pipeline of stage servers."""

    client: AsyncOmniClient
    pids: Sequence[int]
    """Process ids of the stage servers; the client is this process."""

    async def ask(self, prompts: Sequence[Reference]) -> Round:
        """Returns the answers, in the order of the prompts. Raises OmniRequestError."""
        before, began = self._cpu_s(), time.perf_counter()

        async def one(prompt: Reference) -> tuple[Answer, list[int]]:
            tokens: dict[str, list[int]] = {"thinker": [], "talker": []}
            first, samples = None, 0
            async for event in self.client.generate(
                token_ids=prompt.prompt,
                sampling=SAMPLING,
                seed=SEED,
                encoding="pcm_f32le",
                include_token_ids=True,
                include_codec_tokens=True,
            ):
                if isinstance(event, AudioChunk):
                    first = first or time.perf_counter() - began
                    samples += len(event.data) // 4
                elif isinstance(event, TokenDelta):
                    tokens[event.stage] += event.ids
            answer = Answer(time.perf_counter() - began, first, samples, tuple(tokens["thinker"]))
            return answer, tokens["talker"]

        made = await asyncio.gather(*(one(prompt) for prompt in prompts))
        cpu = self._cpu_s() - before
        return Round([answer for answer, _ in made], [codes for _, codes in made], cpu)

    def _cpu_s(self) -> float:
        return read_cpu_s(self.pids) + time.process_time()


class Peer:
    """vllm-omni with given limits of concurrent requests, in its own process group.

    Its processes are suspended between rounds: without requests they poll every millisecond, which would take
    processor time from the side that is measured.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, python: Path, checkpoint: Path, limits: Sequence[int], folder: Path) -> Peer:
        """Start vllm-omni and wait until it is ready. Its files go to the folder.

        Raises RuntimeError or TimeoutError.
        """
        configuration, codes, log = prepare_folder(folder, limits), folder / "codes.jsonl", folder / "log"
        with log.open("w", encoding="utf-8") as errors:
            process = await asyncio.create_subprocess_exec(
                *(python, ENGINE, checkpoint, configuration, codes),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=environment(codes),
                limit=LINE_BYTES,
                start_new_session=True,
            )
        side = cls(process, log)
        try:
            await side._read(START_LIMIT_S)
        except BaseException:
            await side.close()
            raise
        return side

    async def ask(self, prompts: Sequence[Reference]) -> Round:
        """Returns the answers, in the order of the prompts. Raises RuntimeError or TimeoutError."""
        if self._process.stdin is None:
            raise RuntimeError("vllm-omni has no stdin")
        asked = {
            "prompts": [prompt.prompt for prompt in prompts],
            "text_tokens": THINKER_TOKENS,
            "codes": TALKER_TOKENS,
            "codec_end": CODEC_END,
        }
        with self._running():
            before = read_cpu_s([self.pid])
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            line = await self._read(ANSWER_LIMIT_S)
            return parse_round(line, read_cpu_s([self.pid]) - before)

    def suspend(self) -> None:
        """Suspend all processes until the next round."""
        for process in _trees([self.pid]):
            process.suspend()

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Resume the processes for the block, and suspend them again unless the block raises."""
        self._resume()
        yield
        self.suspend()

    def _resume(self) -> None:
        for process in _trees([self.pid]):
            process.resume()

    async def close(self) -> None:
        """End vllm-omni and all of its processes."""
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
            self._resume()
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_LIMIT_S)
        except TimeoutError:
            print(f"vllm-omni did not end within {STOP_LIMIT_S} s: killed")
        finally:
            with contextlib.suppress(ProcessLookupError):  # all of them have ended
                os.killpg(self.pid, signal.SIGKILL)

    async def _read(self, limit_s: float) -> Mapping[str, Any]:
        """Returns the next line that vllm-omni's process prints."""
        if self._process.stdout is None:
            raise RuntimeError("vllm-omni has no stdout")
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), limit_s)
        except TimeoutError as error:
            raise TimeoutError(f"vllm-omni said nothing for {limit_s:g} s:\n{self._tail()}") from error
        if not line:
            raise RuntimeError(f"vllm-omni ended:\n{self._tail()}")
        return dict(json.loads(line))

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:])


def prepare_folder(folder: Path, limits: Sequence[int]) -> Path:
    """Make a folder for vllm-omni's files. Returns the path of its deployment file: JSON, which is YAML too."""
    folder.mkdir()
    file = folder / "deployment.yaml"
    file.write_text(json.dumps(deployment(limits)), encoding="utf-8")
    return file


def read_cpu_s(pids: Sequence[int]) -> float:
    """Returns the processor seconds so far of the processes and all their descendants."""
    return sum(sum(process.cpu_times()[:2]) for process in _trees(pids))


async def describe_start(pids: Sequence[int], seconds: float) -> Start:
    """Returns the cost of the start of a side that is ready now, and the cores that it uses without requests.

    `seconds` is how long the start took.
    """
    cpu = read_cpu_s(pids)
    await asyncio.sleep(IDLE_S)
    idle = (read_cpu_s(pids) - cpu) / IDLE_S
    memory = sum(process.memory_full_info().pss for process in _trees(pids))
    return Start(seconds, cpu, memory / 2**20, idle)


def _trees(pids: Sequence[int]) -> list[psutil.Process]:
    roots = [psutil.Process(pid) for pid in pids]
    return [process for root in roots for process in (root, *root.children(recursive=True))]
