"""Starts and controls the process of hostile clients (callers.py). Every wait for that process has a time limit."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
READY_S = 300.0
"""Limit for the start, in which the clients generate hundreds of media, some of them videos."""
LATE_S = 60.0
"""How long after the end of an attack its result may arrive. A client's last call may take 25 s."""


class Attackers:
    """Hostile clients of one target, as a context manager that starts and ends their process."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._process: asyncio.subprocess.Process | None = None
        self.outcomes: Counter[str] = Counter()
        """How many of the clients' calls ended in each way, over all attacks."""

    @property
    def pid(self) -> int:
        return self._running.pid

    async def __aenter__(self) -> Self:
        """Starts the process and waits until it has generated its requests."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "checks.soak.callers",
            self._target,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests", ROOT)))},
        )
        await self._line(READY_S)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            self._running.kill()
        await self._running.wait()

    async def attack(self, seconds: float) -> None:
        """Runs an attack for `seconds` and adds to `outcomes`. Raises TimeoutError if the clients do not finish."""
        stdin = self._running.stdin
        if stdin is None:
            raise RuntimeError("the hostile clients have no stdin")
        stdin.write(f"{seconds}\n".encode())
        await stdin.drain()
        self.outcomes.update(json.loads(await self._line(seconds + LATE_S)))

    async def _line(self, within_s: float) -> bytes:
        stdout = self._running.stdout
        if stdout is None:
            raise RuntimeError("the hostile clients have no stdout")
        async with asyncio.timeout(within_s):
            line = await stdout.readline()
        if not line:
            raise RuntimeError("the hostile clients ended")
        return line

    @property
    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the hostile clients are not started")
        return self._process
