"""A gateway on a free loopback port, on a thread of this process or as a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from omni_gateway.entries.pipelines import Pipelines, ServedPipeline, StaticPipelines
from omni_gateway.http_server.app import create_app
from omni_gateway.http_server.server import ListenOptions, make_server
from omni_gateway.settings import GatewaySettings
from support.processes.polling import PATIENCE_S, wait_until


@contextmanager
def serve_gateway(
    *pipelines: ServedPipeline,
    settings: GatewaySettings | None = None,
    tls_dir: Path | None = None,
    source: Pipelines | None = None,
) -> Iterator[str]:
    """Serves the pipelines inside the block, or those of the source, on a thread. Yields the gateway's URL."""
    settings = settings or GatewaySettings()
    app = create_app(source or StaticPipelines(pipelines), settings)
    server = make_server(app, settings, ListenOptions(port=0, tls_dir=tls_dir))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        if not server.started:
            raise RuntimeError("the gateway did not start")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"{'https' if tls_dir else 'http'}://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


def wait_for_metrics(url: str, *lines: str) -> None:
    """Waits until the metrics of the gateway at `url` have lines that begin so.

    A gateway counts an answer, a response or a session when it has ended it, and the client may know that sooner.
    """

    def missing() -> list[str]:
        page = httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text
        return [line for line in lines if f"\n{line}" not in page]

    wait_until(lambda: not missing(), why=missing)


@dataclass(frozen=True)
class GatewayProcess:
    """A gateway that runs as a separate process."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def rss_bytes(self) -> int:
        """Returns the process's resident memory in bytes."""
        return psutil.Process(self.process.pid).memory_info().rss


@contextmanager
def run_gateway(folder: Path, endpoint: str, config: str = "") -> Iterator[GatewayProcess]:
    """Runs `python -m omni_gateway` inside the block.

    `endpoint` is NAME=URL of a pipeline, and `config` the text of the configuration file.
    """
    settings, address, log = folder / "gateway.yaml", folder / "gateway.address.json", folder / "gateway.log"
    settings.write_text(config)
    command = [sys.executable, "-m", "omni_gateway", "--host", "127.0.0.1", "--port", "0", "--config", str(settings)]
    command += ["--endpoint", endpoint, "--address-file", str(address)]
    with log.open("wb") as output, subprocess.Popen(command, stderr=output) as process:
        try:
            wait_until(lambda: address.exists() or process.poll() is not None, why=log.read_text)
            if not address.exists():
                raise RuntimeError(f"the gateway did not start: {log.read_text()}")
            yield GatewayProcess(process, json.loads(address.read_text())["http"], log)
        finally:
            process.kill()
