"""Starts a benchmark's servers and its client process, and reads the servers' processor time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from omni_cli.local.ports import pick_ports

START_S = 120.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers Generate."""

    pid: int
    port: int

    def cpu_s(self) -> float:
        """Returns the processor seconds of all its threads so far, without engines in other processes."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_S


@dataclass(frozen=True, slots=True)
class Callers:
    """A client process. `start` makes it send a run's requests, and `finish` returns what it received."""

    process: subprocess.Popen[str]

    def start(self, **run: object) -> None:
        """Begin a run. The keyword arguments are the fields that the process's module reads."""
        if self.process.stdin is None:
            raise RuntimeError("callers without stdin")
        self.process.stdin.write(json.dumps(run) + "\n")
        self.process.stdin.flush()

    def finish(self) -> dict[str, Any]:
        """Waits for the end of the run. Returns its results. Raises RuntimeError if the process has ended."""
        return dict(json.loads(_read(self.process)))


@contextmanager
def serve(folder: Path, module: str, stage: dict[str, Any]) -> Iterator[Server]:
    """Yields a stage server in a process: `python -m MODULE FILE`, or `python -m omni_stage serve` if `module` is
    empty. Raises RuntimeError with the end of the log if it does not start."""
    file = folder / f"{stage['stage']}-{len(list(folder.iterdir()))}.yaml"
    (port,) = pick_ports(1)
    listen = {"host": "127.0.0.1", "grpcPort": port, "healthPort": 0, "metricsPort": 0}
    file.write_text(yaml.safe_dump({"schemaVersion": 1, "pipeline": "bench", "listen": listen, **stage}))
    address = file.with_suffix(".address.json")
    command = [sys.executable, "-m", module, str(file)] if module else _real(file, address)
    log = file.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_S
        while not address.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command} did not start ({process.poll()}): {log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield Server(process.pid, json.loads(address.read_text())["grpc"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def _real(file: Path, address: Path) -> list[str]:
    return [sys.executable, "-m", "omni_stage", "serve", "--config", str(file), "--address-file", str(address)]


@contextmanager
def serve_bare(module: str, *arguments: str) -> Iterator[Server]:
    """Yields a bare server: `python -m MODULE ARGUMENTS`, which prints its port."""
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield Server(process.pid, json.loads(_read(process))["grpc"])
    finally:
        process.kill()
        process.wait()


@contextmanager
def start_callers(module: str) -> Iterator[Callers]:
    """Yields a process that sends requests: `python -m MODULE`."""
    process = subprocess.Popen([sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Callers(process)
    finally:
        process.kill()
        process.wait()


def _read(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise RuntimeError(f"a process ended with {process.wait()}: {process.args}")
    return line
