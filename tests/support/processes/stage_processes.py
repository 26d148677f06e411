"""Stage servers as processes that a test starts, stops and kills individually, on ports that it picks beforehand.

`omnipipe run` ends when a stage ends. Here a stage can die and restart on its port while the others keep running.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from omni_cli.local.guard import ProcessId, end_tree, list_tree
from omni_cli.local.ports import pick_ports
from omni_proto.stage_config import StageConfig
from support.processes.forks import ForkedProgram, preload
from support.processes.pipelines import find_engine_core
from support.processes.polling import PATIENCE_S
from support.processes.process import Running

REAL = (sys.executable, "-m", "omni_stage", "serve")
CHEAP = (sys.executable, str(Path(__file__).parents[1] / "stages" / "cheap_stages.py"))
preload("support.processes.warm_stage")
START_TIMEOUT_S = 400.0
STAGES = {"qwen2_5_omni": ("thinker", "talker", "token2wav"), "qwen3_omni": ("thinker", "talker", "code2wav")}
"""Each family's stages, from the entry down."""
_TOKENS_ONLY = ("maxModelLen", "kvCacheMemoryMib")


def chain_configs(
    ports: Mapping[str, int],
    *,
    targets: Mapping[str, str] | None = None,
    family: str = "qwen2_5_omni",
    **settings: object,
) -> dict[str, StageConfig]:
    """Returns configurations of a family's three stages on this machine.

    targets: stage -> the address at which its upstream stage calls it, if that is not its own port. `settings` apply to
    every stage, but the last stage does not get the engineArgs of _TOKENS_ONLY.
    """
    configs = {}
    stages = STAGES[family]
    for index, stage in enumerate(stages):
        below = list(stages[index:])
        data: dict[str, object] = {
            "pipeline": "test",
            "stage": stage,
            "component": f"{family}/{stage}",
            "model": {"path": "/model"},
            "outputs": (["Text"], [], ["Audio"])[index],
            "listen": {"host": "127.0.0.1", "grpcPort": ports[stage], "healthPort": 0, "metricsPort": 0},
            **settings,
        }
        arguments = data.get("engineArgs")
        if len(below) == 1 and isinstance(arguments, dict):
            data["engineArgs"] = {key: value for key, value in arguments.items() if key not in _TOKENS_ONLY}
        if index:
            data["input"] = {"source": stages[index - 1]}
        if len(below) > 1:
            target = (targets or {}).get(below[1], f"127.0.0.1:{ports[below[1]]}")
            edge = {"stage": below[1], "target": target, "component": f"{family}/{below[1]}"}
            data["downstream"] = [{**edge, "stages": below[1:], "outputs": ["Audio"]}]
        configs[stage] = StageConfig.model_validate(data)
    return configs


def pick_chain_ports(family: str = "qwen2_5_omni") -> dict[str, int]:
    """Returns a free gRPC port for each stage."""
    stages = STAGES[family]
    return dict(zip(stages, pick_ports(len(stages)), strict=True))


@dataclass
class StageProcess:
    """A process with one stage, or with several stages that share it. The context manager kills it at the end."""

    configs: Sequence[StageConfig]
    folder: Path
    command: Sequence[str] = REAL
    environment: Mapping[str, str] = field(default_factory=dict)
    fork: bool = False
    """Whether to run the program as a fork of a server that has imported vLLM, for tests that start it many times."""
    ports: dict[str, dict[str, int]] = field(default_factory=dict)
    """Stage -> its ports. Filled when the stage is ready."""

    def __post_init__(self) -> None:
        self._process: Running | None = None

    @property
    def name(self) -> str:
        return "-".join(config.stage for config in self.configs)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def termination(self) -> Path:
        """Returns the path of the termination message, which the kubelet would read."""
        return self.folder / f"{self.name}.termination.json"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> Self:
        """Starts the process, which appends to the log of earlier runs. With `wait`, waits until it is ready."""
        self.ports = {}
        files = []
        for config in self.configs:
            path = self.folder / f"{config.stage}.yaml"
            path.write_text(config.to_yaml())
            self._address(config).unlink(missing_ok=True)
            files.append(str(path))
        self.termination.unlink(missing_ok=True)
        arguments = files
        if tuple(self.command) == REAL:
            (config,) = self.configs
            arguments = ["--config", files[0], "--address-file", str(self._address(config))]
        tests = str(Path(__file__).parents[2])
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH")))),
            "OMNI_TERMINATION_LOG": str(self.termination),
            **self.environment,
        }
        if self.fork:
            self._process = ForkedProgram("omni_stage.__main__", ["serve", *arguments], self.log, environment)
        else:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*self.command, *arguments], stdout=log, stderr=log, env=environment, start_new_session=True
                )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Waits until every stage is ready.

        Raises RuntimeError with the log's end if the process ends first or START_TIMEOUT_S has passed.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        for config in self.configs:
            address = self._address(config)
            while not address.exists():
                if self.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} did not become ready:\n{self.read_log()[-6000:]}")
                time.sleep(0.05)
            self.ports[config.stage] = json.loads(address.read_text())

    def poll(self) -> int | None:
        return self._process.poll() if self._process else None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the stage server only, not to its engine."""
        os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int:
        """Waits for the process to end. Returns its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """Kills the whole process tree (SIGKILL): server, engine and helpers."""
        if self._process is not None:
            end_tree(self._process.pid)
            self._process.wait()

    def read_log(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def rss_bytes(self) -> int:
        """Returns the resident memory of the stage server's process, in bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no VmRSS")

    def threads(self) -> int:
        """Returns the number of threads of the stage server's process."""
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def metrics(self, stage: str) -> str:
        """Returns a stage's /metrics as text."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.ports[stage]['metrics']}/metrics", timeout=PATIENCE_S
        ) as answer:
            return str(answer.read().decode())

    def metric(self, stage: str, name: str) -> float:
        """Returns the value of a metric's first sample. Raises KeyError if there is none."""
        for line in self.metrics(stage).splitlines():
            if line.startswith((f"{name} ", f"{name}{{")):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)

    def health(self, stage: str, service: str) -> str:
        """Returns SERVING or NOT_SERVING, as the health port reports for a service."""
        with grpc.insecure_channel(f"127.0.0.1:{self.ports[stage]['health']}") as channel:
            request = health_pb2.HealthCheckRequest(service=service)
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=PATIENCE_S)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    def list_tree(self) -> set[ProcessId]:
        """Returns the process and all its descendants."""
        return list_tree(self.pid)

    def engine_core(self) -> int:
        """Returns the process ID of vLLM's engine core."""
        return find_engine_core(self.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _address(self, config: StageConfig) -> Path:
        return self.folder / f"{config.stage}.yaml.address.json"
