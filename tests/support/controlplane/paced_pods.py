"""A pipeline of paced engines and a gateway as processes, inside `pod_network.run_inside`, and calls to them."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import grant_gateway
from support.controlplane.pipelines import build_pipeline, build_stage
from support.controlplane.pod_network import ANNOTATIONS, read_address
from support.controlplane.server.api import Api, Manifest, eventually
from support.processes.polling import PATIENCE_S
from support.processes.process import ChildProcess

STAGES = ("thinker", "talker", "decoder")
ACTIVATOR = "10.244.0.2:50051"
"""An address in the network of pods; nothing here maps ports, so the port is that of the pipelines' Services."""
PLAIN = {"model": "omni", "messages": [{"role": "user", "content": "How are you?"}]}
SPOKEN = {**PLAIN, "modalities": ["text", "audio"], "audio": {"format": "pcm16"}}


def paced_pipeline(table: Path, scaling: Manifest, **thinker: Any) -> Manifest:
    stages = [
        build_stage("thinker", component="sim/thinker", outputs=["Text"], **thinker),
        build_stage("talker", after="thinker", component="sim/talker"),
        build_stage("decoder", after="talker", component="sim/decoder", outputs=["Audio"]),
    ]
    for stage in stages:
        stage["scaling"] = scaling
    pipeline = build_pipeline(stages=stages)
    pipeline["spec"]["model"] = {"uri": f"file://{table}"}
    pipeline["spec"]["defaults"]["podAnnotations"] = ANNOTATIONS
    return pipeline


@contextmanager
def run_gateway(control_plane: ControlPlane, api: Api, folder: Path) -> Iterator[httpx.Client]:
    """Runs `python -m omni_gateway` with the chart's rights. Yields a client."""
    grant_gateway(api, api.namespace)
    kubeconfig = control_plane.kubeconfig_for_service_account(api.namespace, "gateway")
    address, settings = folder / "gateway.json", folder / "gateway.yaml"
    settings.write_text("keepAliveSeconds: 0.5\n")
    command = [sys.executable, "-m", "omni_gateway", "--cluster", "--namespace", api.namespace]
    command += ["--kubeconfig", str(kubeconfig), "--host", "127.0.0.1", "--port", "0", "--activator", ACTIVATOR]
    command += ["--config", str(settings), "--address-file", str(address)]
    process = ChildProcess("gateway", command, folder / "gateway.log", {**os.environ, "GRPC_DNS_RESOLVER": "native"})
    process.start()
    try:
        process.wait_until(address.exists)
        with httpx.Client(base_url=read_address(address)["http"], timeout=PATIENCE_S) as client:
            eventually(lambda: client.get("/ready").status_code == 200, timeout_s=PATIENCE_S)
            yield client
    finally:
        process.kill()


def ask(client: httpx.Client, body: Manifest) -> str:
    """Returns what is wrong with the answer; empty if nothing is."""
    try:
        answer = client.post("/v1/chat/completions", json=body)
    except httpx.HTTPError as error:
        return repr(error)
    return "" if answer.status_code == 200 else f"{answer.status_code}: {answer.text[:300]}"


class Load:
    """Keeps up to `most` callers busy, each with one call at a time; every fourth call asks for speech.

    A context manager; afterwards no call is in flight.
    """

    def __init__(self, client: httpx.Client, most: int) -> None:
        self.active = 0
        """Number of callers that call now."""
        self.wrong: list[str] = []
        """What was wrong with each call that failed."""
        self._numbers = itertools.count()
        self._done: list[None] = []
        self._client, self._most = client, most
        self._ended = threading.Event()
        self._workers: list[Future[None]] = []

    @property
    def done(self) -> int:
        """Number of calls that have ended."""
        return len(self._done)

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(self._most)
        self._workers = [self._pool.submit(self._work, number) for number in range(self._most)]
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._pool.shutdown()
        for worker in self._workers:
            worker.result()

    def _work(self, number: int) -> None:
        while not self._ended.is_set():
            if number >= self.active:
                time.sleep(0.1)
                continue
            if said := ask(self._client, PLAIN if next(self._numbers) % 4 else SPOKEN):
                self.wrong.append(said)
            self._done.append(None)
