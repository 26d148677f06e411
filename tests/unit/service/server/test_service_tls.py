"""TLS of the entry's port: which clients are accepted, and what a renewed certificate changes."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import grpc
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from omni_proto.stage_config import ServerTls
from omni_stage.service.server import tls
from support.peers.certificates import DAY, MountedSecret, tls_files
from support.peers.tls_entries import BROKEN, CA, OTHER, PAIR, ask, connect, credentials, listen
from support.processes.polling import PATIENCE_S, until
from support.stages import scripted_stages as lab

EXPIRY = "omni_stage_tls_certificate_expiry_timestamp_seconds"
REJECTED = "omni_stage_tls_certificate_rejected"


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls.ServingCertificate.watch, "__defaults__", (0.02,))


async def shown_serial(stage: Any, version: ssl.TLSVersion | None = None) -> int:
    """Returns the serial number of the certificate that a new connection gets, optionally with one TLS version."""

    def shake_hands() -> int:
        context = ssl.create_default_context(cadata=CA.certificate.decode())
        context.set_alpn_protocols(["h2"])
        if version is not None:
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = context.maximum_version = version
        with (
            socket.create_connection(("127.0.0.1", stage.server.ports.grpc), timeout=PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            shown = wrapped.getpeercert(binary_form=True)
        assert shown
        return x509.load_der_x509_certificate(shown).serial_number

    return await asyncio.to_thread(shake_hands)


# Which clients are accepted ------------------------------------


async def test_clients_that_trust_the_ca_are_answered(kit: Any, secret: MountedSecret) -> None:
    stage = await kit.serve(listen=listen(secret))
    async with connect(stage, credentials()) as stub:
        answer = await lab.ask(SimpleNamespace(stub=stub))
    assert (answer.code, answer.text) == (grpc.StatusCode.OK, "Hello")
    assert stage.registry.get_sample_value(EXPIRY) == PAIR.not_after.timestamp()
    assert stage.registry.get_sample_value(REJECTED) == 0


@pytest.mark.parametrize(
    "trust", [None, credentials(OTHER.certificate)], ids=["plaintext", "a client that trusts another CA"]
)
async def test_other_clients_are_refused(
    kit: Any, secret: MountedSecret, trust: grpc.ChannelCredentials | None
) -> None:
    """Plaintext clients and clients that trust another CA cannot connect."""
    stage = await kit.serve(listen=listen(secret))
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await ask(stage, trust)
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_health_and_metrics_ports_stay_plaintext(kit: Any, secret: MountedSecret) -> None:
    stage = await kit.serve(listen=listen(secret))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{stage.server.ports.health}") as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="readiness"), timeout=PATIENCE_S
        )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("version", "taken"),
    [
        (ssl.TLSVersion.TLSv1_3, True),
        (ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_1, False),
        (ssl.TLSVersion.TLSv1, False),
    ],
    ids=["1.3", "1.2", "1.1", "1.0"],
)
async def test_versions(kit: Any, secret: MountedSecret, version: ssl.TLSVersion, taken: bool) -> None:
    """The server accepts TLS 1.2 and 1.3, but no older version."""
    stage = await kit.serve(listen=listen(secret))
    if taken:
        assert await shown_serial(stage, version) == PAIR.serial
    else:
        with pytest.raises(ssl.SSLError):
            await shown_serial(stage, version)


async def test_required_client_certificates(kit: Any, tmp_path: Path) -> None:
    secret = MountedSecret(tmp_path / "mutual", tls_files(PAIR, CA.certificate))
    stage = await kit.serve(listen=listen(secret, clientCertificates="Required"))
    assert await ask(stage, credentials(client=CA.issue("a client"))) == "thinker"
    for client in (None, OTHER.issue("a client")):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await ask(stage, credentials(client=client))
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE


# Rotation ------------------------------------


async def test_rotation_reaches_new_connections_and_leaves_streams_alone(kit: Any, secret: MountedSecret) -> None:
    proceed = asyncio.Event()

    async def two_words(request: Any) -> Any:
        steps = lab.say_hello(request)
        yield await anext(steps)
        await proceed.wait()
        async for step in steps:
            yield step

    stage = await kit.serve(two_words, listen=listen(secret))
    renewed = CA.issue(lasts=9 * DAY)
    async with connect(stage, credentials()) as stub:
        call = stub.Generate(iter([lab.start(), lab.END]), timeout=PATIENCE_S)
        task = asyncio.create_task(lab.collect(call))
        await asyncio.wait_for(stage.engine.started.wait(), PATIENCE_S)
        assert await shown_serial(stage) == PAIR.serial
        secret.write(tls_files(renewed))
        await until(lambda: stage.registry.get_sample_value(EXPIRY) == renewed.not_after.timestamp())
        assert await shown_serial(stage) == renewed.serial
        proceed.set()
        answer = await task
    assert (answer.code, answer.text) == (grpc.StatusCode.OK, "Hello")
    assert await ask(stage, credentials()) == "thinker"


@pytest.mark.parametrize("files", BROKEN.values(), ids=BROKEN)
async def test_a_broken_renewal_keeps_the_certificate_and_is_logged_once(
    kit: Any, secret: MountedSecret, files: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    stage = await kit.serve(listen=listen(secret))
    with caplog.at_level(logging.INFO, logger="omni_stage.service.server.tls"):
        secret.write(files)
        await until(lambda: stage.registry.get_sample_value(REJECTED) == 1)
        await asyncio.sleep(0.1)
        assert await shown_serial(stage) == PAIR.serial
        secret.write(tls_files(PAIR))
        await until(lambda: stage.registry.get_sample_value(REJECTED) == 0)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "of Secret entry-cert" in errors[0]
    assert "BEGIN" not in caplog.text
    renewed = CA.issue(lasts=9 * DAY)
    secret.write(tls_files(renewed))
    await until(lambda: stage.registry.get_sample_value(EXPIRY) == renewed.not_after.timestamp())
    assert await shown_serial(stage) == renewed.serial


async def test_a_certificate_that_expires_while_it_is_served_is_logged_once(
    secret: MountedSecret, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued = CA.issue(lasts=DAY)
    secret.write(tls_files(issued))
    served = tls.ServingCertificate(ServerTls(**listen(secret)["tls"]), CollectorRegistry())
    assert not served.refresh()
    assert "expired" not in caplog.text
    clock = mock.Mock(wraps=datetime)
    clock.now.return_value = issued.not_after + timedelta(seconds=1)
    monkeypatch.setattr("omni_stage.service.server.tls.datetime", clock)
    for _ in range(2):
        assert not served.refresh()
    assert caplog.text.count("it has expired") == 1


async def test_an_expired_certificate_is_served_and_told(
    kit: Any, secret: MountedSecret, caplog: pytest.LogCaptureFixture
) -> None:
    expired = CA.issue(lasts=-DAY)
    secret.write(tls_files(expired))
    with caplog.at_level(logging.WARNING, logger="omni_stage.service.server.tls"):
        stage = await kit.serve(listen=listen(secret))
    assert "expired" in caplog.text
    assert stage.registry.get_sample_value(EXPIRY) == expired.not_after.timestamp()
    with pytest.raises(grpc.aio.AioRpcError, match="certificate has expired"):
        await ask(stage, credentials())
