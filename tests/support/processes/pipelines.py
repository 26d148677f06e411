"""Starts `omnipipe run` as a user would, and finds processes that it left behind."""

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

from omni_cli.local.guard import ProcessId, list_tree
from support.processes.process import ENDS_WITH_PARENT

OMNIPIPE = str(Path(sys.executable).with_name("omnipipe"))
SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
START_TIMEOUT_S = 400.0


@dataclass(frozen=True)
class RunningPipeline:
    """A pipeline whose stages are processes on this machine."""

    endpoint: str
    stages: dict[str, dict[str, int]]
    """Stage -> {"grpc", "health", "metrics"} ports."""
    servers: dict[str, int]
    """Stage -> process ID of its stage server."""
    log_dir: Path

    def engine_core(self, stage: str) -> int:
        """Returns the process ID of a stage's vLLM engine core."""
        return find_engine_core(self.servers[stage])

    def list_processes(self) -> set[ProcessId]:
        """Returns the stage servers and all their descendants."""
        return {one for server in self.servers.values() for one in list_tree(server)}

    def logs(self) -> str:
        """Returns the logs of all stages."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.log_dir.glob("*.log")))


@dataclass(frozen=True)
class OmnipipeRun(RunningPipeline):
    """A pipeline that `omnipipe run` started."""

    process: subprocess.Popen[bytes]
    """The `omnipipe` process."""


def find_engine_core(server: int) -> int:
    """Returns the process ID of vLLM's engine core below a stage server. `server` must lead a session."""
    (engine,) = [one.pid for one in list_tree(server) if b"EngineCore" in _command_line(one.pid)]
    return engine


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def session_of(pid: int) -> int | None:
    """Returns the session of a process; None if it has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


@contextmanager
def run_pipeline(
    pipeline: Path, model_dir: Path, folder: Path, environment: dict[str, str] | None = None
) -> Iterator[OmnipipeRun]:
    """Runs `omnipipe run` until the block ends. Raises RuntimeError with the log's end if it does not become ready."""
    address_file, log_dir = folder / "address.json", folder / "logs"
    command = [OMNIPIPE, "run", str(pipeline), "--model-dir", str(model_dir)]
    command += ["--address-file", str(address_file), "--log-dir", str(log_dir)]
    with (folder / "run.log").open("wb") as log:
        # A new session separates this pipeline's processes from those of other pipelines. If the test process is
        # killed, the kernel kills `omnipipe`, and its guard then ends the stages.
        process = subprocess.Popen(
            [*ENDS_WITH_PARENT, *command],
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            running = wait_for_address(process, address_file, log_dir, folder / "run.log")
            yield running
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for_address(process: subprocess.Popen[bytes], address_file: Path, log_dir: Path, run_log: Path) -> OmnipipeRun:
    """Waits until every stage is ready. Returns the pipeline.

    Raises RuntimeError if `omnipipe run` ends first or START_TIMEOUT_S has passed.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while not address_file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"omnipipe run did not become ready:\n{run_log.read_text(errors='replace')[-6000:]}")
        time.sleep(0.1)
    address = json.loads(address_file.read_text())
    leaders = [one.pid for one in list_tree(process.pid) if session_of(one.pid) == one.pid]
    servers = {
        stage: next(pid for pid in leaders if f"/{stage}.yaml".encode() in _command_line(pid))
        for stage in address["stages"]
    }
    return OmnipipeRun(address["endpoint"], address["stages"], servers, log_dir, process)


def processes_with(text: str) -> list[int]:
    """Returns the IDs of other live processes whose environment or command line contains the text."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if state != "Z" and (
                text.encode() in (folder / "environ").read_bytes() or text.encode() in (folder / "cmdline").read_bytes()
            ):
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found
