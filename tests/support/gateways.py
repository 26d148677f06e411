"""A gateway on a thread of this process, listening on a free port of the loopback interface."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omni_gateway.app import create_app
from omni_gateway.pipelines import ServedPipeline, StaticPipelines
from omni_gateway.server import Listen, make_server
from omni_gateway.settings import GatewaySettings


@contextmanager
def serve_gateway(
    *pipelines: ServedPipeline, settings: GatewaySettings | None = None, tls_dir: Path | None = None
) -> Iterator[str]:
    """Serves the pipelines inside the block; gives the gateway's URL."""
    settings = settings or GatewaySettings()
    app = create_app(StaticPipelines(pipelines), settings)
    server = make_server(app, settings, Listen(port=0, tls_dir=tls_dir))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not server.started:
            if time.monotonic() > deadline or not thread.is_alive():
                raise RuntimeError("the gateway did not start")
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"{'https' if tls_dir else 'http'}://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
