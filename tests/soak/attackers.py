"""The process of hostile callers (callers.py), told when to attack; every wait for it has a limit."""

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

TESTS = Path(__file__).parents[1]
READY_S = 300.0
"""They make hundreds of media first, some of them videos."""
LATE_S = 60.0
"""A caller's last call may take 25 s."""


class Attackers:
    """Hostile callers of one target. A context manager that ends them."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._process: asyncio.subprocess.Process | None = None
        self.outcomes: Counter[str] = Counter()
        """How their calls ended, in all attacks."""

    @property
    def pid(self) -> int:
        return self._running.pid

    async def __aenter__(self) -> Self:
        """Start the process, and wait until it has made what it sends."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "soak.callers",
            self._target,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS.parent)))},
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
        """Let them call for so long; adds to `outcomes`. Raises TimeoutError if they do not come to an end."""
        stdin = self._running.stdin
        if stdin is None:
            raise RuntimeError("the hostile callers have no stdin")
        stdin.write(f"{seconds}\n".encode())
        await stdin.drain()
        self.outcomes.update(json.loads(await self._line(seconds + LATE_S)))

    async def _line(self, within_s: float) -> bytes:
        stdout = self._running.stdout
        if stdout is None:
            raise RuntimeError("the hostile callers have no stdout")
        async with asyncio.timeout(within_s):
            line = await stdout.readline()
        if not line:
            raise RuntimeError("the hostile callers ended")
        return line

    @property
    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the hostile callers are not started")
        return self._process
