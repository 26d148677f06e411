"""Runs a pipeline on this machine: the same stage servers as in a cluster, as processes.

    pipeline file -> compile_stages -> one file and one process for each stage -> ready -> watched until stopped

All stages start at the same time, because engines take long to load. Their ports are picked before the start, and
gpus.py assigns their GPUs. Stages that share a GPU may start in any order: see docs/gpu-sizing.md.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import yaml

from omni_cli.local.gpus import stage_environments
from omni_cli.local.guard import ProcessId
from omni_cli.local.ports import LOOPBACK, NoFreePortError, is_free, pick_ports
from omni_cli.local.processes import RUN_MODULE, SessionGuard, StageAddress, StageFiles, StageProcess, stop_processes
from omni_cli.local.progress import StartProgress
from omni_proto.pipeline import OmniPipeline, Stage, compile_stages, order_stages
from omni_proto.stage_config import ClientCertificates, Listen, ServerTls, StageConfig

GATEWAY: Final = "gateway"
"""Name of the process, of its log and of its files."""
STAGE_COMMAND = (*RUN_MODULE, "omni_stage", "serve")
START_ATTEMPTS = 3
"""Maximum number of attempts to start the stages. Another attempt follows only if a program took a picked port."""
POLL_S = 0.1
LOG_TAIL_LINES = 20


class LocalRunError(RuntimeError):
    """The pipeline cannot run here, or a process ended. If a process ended, the message names it and quotes the end of
    its log."""


class PortTakenError(LocalRunError):
    """A port is taken by another program."""


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """How a pipeline is run on this machine."""

    model_path: str | Mapping[str, str]
    """Directory of the checkpoint of all stages, or of each stage's checkpoint, by stage name."""
    port: int = 0
    """gRPC port of the entry stage; 0: any free port."""
    log_dir: Path | None = None
    """Directory for logs; None: a temporary directory, which is kept only if the run fails."""
    tls_dir: Path | None = None
    """Directory with the entry's tls.crt and tls.key (and ca.crt); None: plaintext, even if spec.entry.tls is set."""
    start_timeout_s: float = 900.0
    """Time within which all stages must become ready."""
    grace_s: float = 15.0
    """How long stages may take to end after SIGTERM before they are killed."""
    http_port: int | None = None
    """Port of the gateway on 127.0.0.1; 0: any free port; None: no gateway."""
    stage_command: Sequence[str] = STAGE_COMMAND
    """Program and arguments that start a stage server."""

    @property
    def ca(self) -> Path | None:
        """The ca.crt of tls_dir, for the entry's clients; None if there is none.

        With a tls_dir that has no such file, clients trust the public CAs.
        """
        path = self.tls_dir and self.tls_dir / "ca.crt"
        return path if path and path.exists() else None


def compile_local(
    pipeline: OmniPipeline, model_path: str | Mapping[str, str], ports: dict[str, int], tls_dir: Path | None = None
) -> list[StageConfig]:
    """Returns the stage configurations for one machine. model_path: see LocalOptions.

    The stages listen on loopback only, with health and metrics on free ports, and drain without a notice period.
    """

    def path_of(stage: Stage) -> str:
        return model_path if isinstance(model_path, str) else model_path[stage.name]

    configs = compile_stages(
        pipeline,
        target_for=lambda stage: f"{LOOPBACK}:{ports[stage.name]}",
        model_path_for=path_of,
        model_key_for=path_of,
        listen_for=lambda stage: Listen(
            host=LOOPBACK,
            grpc_port=ports[stage.name],
            health_port=0,
            metrics_port=0,
            tls=None if stage.inputs or tls_dir is None else _tls(pipeline, tls_dir),
        ),
    )
    # The notice gives load balancers time to stop sending requests; here there is no load balancer.
    return [
        config.model_copy(update={"timeouts": config.timeouts.model_copy(update={"drain_notice": 0.0})})
        for config in configs
    ]


def stage_files(directory: Path, log_dir: Path, name: str) -> StageFiles:
    """Returns the paths of one process's files. Removes the address and termination files of an earlier process."""
    files = StageFiles(
        config=directory / f"{name}.yaml",
        address=directory / f"{name}.address.json",
        log=log_dir / f"{name}.log",
        termination=directory / f"{name}.termination.json",
    )
    for stale in (files.address, files.termination):
        stale.unlink(missing_ok=True)
    return files


def requires_client_certificates(pipeline: OmniPipeline) -> bool:
    """Returns whether clients of the entry must present a certificate, if it serves TLS."""
    asked = pipeline.spec.entry.tls
    return asked is not None and asked.client_certificates is ClientCertificates.REQUIRED


def _tls(pipeline: OmniPipeline, directory: Path) -> ServerTls:
    required = requires_client_certificates(pipeline)
    clients = ClientCertificates.REQUIRED if required else ClientCertificates.IGNORED
    return ServerTls(directory=str(directory), client_certificates=clients)


def gateway_command(pipeline: str, endpoint: str, port: int) -> tuple[str, ...]:
    """Returns the program and its arguments, without --config and --address-file, which StageProcess adds."""
    url = endpoint if "://" in endpoint else f"grpc://{endpoint}"
    command = (*RUN_MODULE, "omni_gateway", "--log-format", "text")
    return (*command, "--endpoint", f"{pipeline}={url}", "--host", LOOPBACK, "--port", str(port))


def gateway_settings(pipeline: OmniPipeline, options: LocalOptions) -> str:
    """Returns the gateway's settings as YAML. The drain has no notice period, because there is no load balancer."""
    aliases = pipeline.spec.aliases
    settings: dict[str, object] = {
        "drainNoticeSeconds": 0,
        "drainSeconds": int(options.grace_s),
        "modelAliases": dict.fromkeys(aliases.models, pipeline.metadata.name),
        "voiceAliases": dict(aliases.voices),
    }
    if options.ca is not None:
        settings["entryCa"] = str(options.ca)
    return yaml.safe_dump(settings)


def read_http_url(address: Path) -> str:
    """Returns the gateway's URL from the address file that it writes once it is ready."""
    return str(json.loads(address.read_text(encoding="utf-8"))["http"])


class LocalPipeline:
    """A running pipeline, as a context manager whose exit stops every process. Use it from the main thread."""

    def __init__(self, pipeline: OmniPipeline, options: LocalOptions) -> None:
        self.pipeline = pipeline
        self.options = options
        self.addresses: dict[str, StageAddress] = {}
        self.http_url = ""
        """URL of the gateway once it is ready; empty without a gateway."""
        self._processes: list[StageProcess] = []
        self._guard: SessionGuard | None = None
        self._directory = Path(tempfile.mkdtemp(prefix=f"omnipipe-{pipeline.metadata.name}-"))
        self._failed = False
        self.log_dir = options.log_dir or self._directory

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """HOST:PORT of the entry stage, or grpcs://HOST:PORT with TLS. Raises KeyError until the stage is ready."""
        scheme = "" if self.options.tls_dir is None else "grpcs://"
        return f"{scheme}{LOOPBACK}:{self.addresses[order_stages(self.pipeline)[0].name].grpc}"

    def list_processes(self) -> set[ProcessId]:
        """Returns the running processes that were started (stages, gateway) and all their running descendants."""
        return {one for process in self._processes for one in process.list_tree()}

    def start(self, progress: StartProgress, is_stopping: Callable[[], bool] = lambda: False) -> bool:
        """Start every stage, and the gateway if one is requested. Returns True once all are ready.

        Returns False if is_stopping became true first. Raises LocalRunError if GPUs, ports or the directory for logs
        are missing, or if a process ends or is not ready in time; the other processes keep running until stop().
        Raises OSError if a file cannot be written.
        """
        try:
            environments = stage_environments(self.pipeline, os.environ)
        except ValueError as error:
            raise LocalRunError(str(error)) from error
        try:
            self.log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LocalRunError(f"cannot make {self.log_dir}: {error.strerror}; choose another --log-dir") from error
        self._guard = SessionGuard()
        attempts_left = START_ATTEMPTS
        while True:
            attempts_left -= 1
            ports = self._pick_ports()
            for config in compile_local(self.pipeline, self.options.model_path, ports, self.options.tls_dir):
                self._start_stage(config, environments[config.stage])
                progress.loading(config.stage)
            try:
                return self._wait_ready(progress, is_stopping) and self._start_gateway(is_stopping)
            except LocalRunError:
                if attempts_left == 0 or not any(self._is_taken(name, port) for name, port in ports.items()):
                    self._failed = True
                    raise
                self._end_processes(grace_s=0)

    def check(self) -> None:
        """Raises LocalRunError if a process has ended, or reports that it cannot continue (kubelet would restart
        it)."""
        for process in self._processes:
            if process.poll() is not None or process.has_given_up():
                self._failed = True
                raise LocalRunError(self._explain_end(process))

    def watch(self, is_stopping: Callable[[], bool]) -> None:
        """Wait until is_stopping() is true. Raises LocalRunError if a process ends or gives up before that."""
        while not is_stopping():
            self.check()
            time.sleep(POLL_S)

    def stop(self) -> list[str]:
        """End every process. Returns the names of the processes that had to be killed. May be called again."""
        late = self._end_processes(self.options.grace_s)
        if self._guard:
            self._guard.close()
            self._guard = None
        if not (self._failed and self.log_dir == self._directory):
            shutil.rmtree(self._directory, ignore_errors=True)
        return late

    def _pick_ports(self) -> dict[str, int]:
        names = [stage.name for stage in order_stages(self.pipeline)]
        http = self.options.http_port
        if self.options.port and self.options.port == http:
            raise PortTakenError(f"--port and --http are both {http}; give each its own port")
        for option, port in (("--port", self.options.port), ("--http", http)):
            if port and not is_free(port):
                raise PortTakenError(
                    f"port {port} is taken; choose another with {option}, or end the program that listens there"
                )
        try:
            ports = dict(zip(names, pick_ports(len(names), without=http), strict=True))
        except NoFreePortError as error:
            raise LocalRunError(str(error)) from error
        return {**ports, names[0]: self.options.port} if self.options.port else ports

    def _start_stage(self, config: StageConfig, environment: dict[str, str]) -> None:
        if self._guard is None:
            raise LocalRunError("the pipeline is stopped")
        files = stage_files(self._directory, self.log_dir, config.stage)
        files.config.write_text(config.to_yaml(), encoding="utf-8")
        self._processes.append(StageProcess(config.stage, self.options.stage_command, files, self._guard, environment))

    def _wait_ready(self, progress: StartProgress, is_stopping: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + self.options.start_timeout_s
        while len(self.addresses) < len(self._processes):
            if is_stopping():
                return False
            for process in self._processes:
                address = process.read_address()
                if address and process.name not in self.addresses:
                    self.addresses[process.name] = address
                    progress.ready(process.name, time.monotonic() - process.started)
            self.check()
            if time.monotonic() > deadline:
                waiting = [process for process in self._processes if process.name not in self.addresses]
                self._failed = True
                raise LocalRunError(
                    f"stage {waiting[0].name} is not ready after {self.options.start_timeout_s:g} s\n"
                    + self._quote_log(waiting[0])
                )
            time.sleep(POLL_S)
        return True

    def _start_gateway(self, is_stopping: Callable[[], bool]) -> bool:
        """Start the gateway in front of the ready stages, if one is requested. Returns and raises as start() does."""
        if self.options.http_port is None:
            return True
        if self._guard is None:
            raise LocalRunError("the pipeline is stopped")
        files = stage_files(self._directory, self.log_dir, GATEWAY)
        files.config.write_text(gateway_settings(self.pipeline, self.options), encoding="utf-8")
        command = gateway_command(self.pipeline.metadata.name, self.endpoint, self.options.http_port)
        process = StageProcess(GATEWAY, command, files, self._guard)
        self._processes.append(process)
        deadline = time.monotonic() + self.options.start_timeout_s
        while not files.address.exists():
            if is_stopping():
                return False
            self.check()
            if time.monotonic() > deadline:
                raise LocalRunError(f"the gateway is not ready\n{self._quote_log(process)}")
            time.sleep(POLL_S)
        self.http_url = read_http_url(files.address)
        return True

    def _is_taken(self, name: str, port: int) -> bool:
        ended = any(process.name == name and process.poll() is not None for process in self._processes)
        return ended and port != self.options.port and not is_free(port)

    def _end_processes(self, grace_s: float) -> list[str]:
        processes, self._processes, self.addresses = self._processes, [], {}
        return stop_processes(processes, grace_s)

    def _explain_end(self, process: StageProcess) -> str:
        return f"stage {process.name} {process.describe_end()}\n{self._quote_log(process)}"

    def _quote_log(self, process: StageProcess) -> str:
        lines = process.read_log_tail(LOG_TAIL_LINES)
        quoted = "\n".join(f"  | {line}" for line in lines) if lines else "  (it logged nothing)"
        return f"last lines of {process.files.log}:\n{quoted}"
