"""TLS of the entry's port: what is served, who is let in, and what a renewed certificate changes."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import random
import socket
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from grpc_health.v1 import health_pb2, health_pb2_grpc

from omni_proto.stage.v1 import stage_service_pb2 as pb
from omni_proto.stage.v1 import stage_service_pb2_grpc
from omni_proto.stage_config import ServerTls, StageConfig
from omni_stage.errors import ConfigurationError
from omni_stage.service.server import tls
from support import scripted_stages as lab
from support.certificates import DAY, Authority, MountedSecret, Pair, tls_files
from support.polling import until

CA = Authority("ours")
OTHER = Authority("somebody else's")
PAIR = CA.issue()
EXPIRY = "omni_stage_tls_certificate_expiry_timestamp_seconds"
REJECTED = "omni_stage_tls_certificate_rejected"


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls.ServingCertificate.watch, "__defaults__", (0.02,))


@pytest.fixture
def secret(tmp_path: Path) -> MountedSecret:
    return MountedSecret(tmp_path / "secret", tls_files(PAIR))


def listen(secret: MountedSecret, **settings: str) -> dict[str, Any]:
    ports = {"host": "127.0.0.1", "grpcPort": 0, "healthPort": 0, "metricsPort": 0}
    return {**ports, "tls": {"directory": str(secret.directory), "source": "Secret entry-cert", **settings}}


def credentials(ca: bytes = CA.certificate, client: Pair | None = None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(ca, *((client.key, client.certificate) if client else (None, None)))


@asynccontextmanager
async def connect(stage: Any, trust: grpc.ChannelCredentials | None) -> Any:
    target = f"localhost:{stage.server.ports.grpc}"
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = (
        grpc.aio.secure_channel(target, trust, options=options)
        if trust
        else grpc.aio.insecure_channel(target, options=options)
    )
    async with channel:
        yield stage_service_pb2_grpc.StageServiceStub(channel)


async def ask(stage: Any, trust: grpc.ChannelCredentials | None) -> str:
    """Returns the stage's name, over a connection of its own."""
    async with connect(stage, trust) as stub:
        answer = await stub.GetStage(pb.GetStageRequest(), timeout=10)
    return str(answer.stage)


async def shown_serial(stage: Any, version: ssl.TLSVersion | None = None) -> int:
    """Serial number of the certificate that a new connection sees; version: the only one that the client speaks."""

    def shake_hands() -> int:
        context = ssl.create_default_context(cadata=CA.certificate.decode())
        context.set_alpn_protocols(["h2"])
        if version is not None:
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = context.maximum_version = version
        with (
            socket.create_connection(("127.0.0.1", stage.server.ports.grpc), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            shown = wrapped.getpeercert(binary_form=True)
        assert shown
        return x509.load_der_x509_certificate(shown).serial_number

    return await asyncio.to_thread(shake_hands)


# Who is let in ------------------------------------


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
async def test_others_are_not(kit: Any, secret: MountedSecret, trust: grpc.ChannelCredentials | None) -> None:
    stage = await kit.serve(listen=listen(secret))
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await ask(stage, trust)
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_health_and_metrics_ports_stay_plaintext(kit: Any, secret: MountedSecret) -> None:
    stage = await kit.serve(listen=listen(secret))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{stage.server.ports.health}") as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="readiness"), timeout=10
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
    go_on = asyncio.Event()

    async def two_words(request: Any) -> Any:
        steps = lab.say_hello(request)
        yield await anext(steps)
        await go_on.wait()
        async for step in steps:
            yield step

    stage = await kit.serve(two_words, listen=listen(secret))
    renewed = CA.issue(lasts=9 * DAY)
    async with connect(stage, credentials()) as stub:
        call = stub.Generate(iter([lab.start(), lab.END]), timeout=60)
        task = asyncio.create_task(lab.collect(call))
        await asyncio.wait_for(stage.engine.started.wait(), 10)
        assert await shown_serial(stage) == PAIR.serial
        secret.write(tls_files(renewed))
        await until(lambda: stage.registry.get_sample_value(EXPIRY) == renewed.not_after.timestamp(), 20)
        assert await shown_serial(stage) == renewed.serial
        go_on.set()
        answer = await task
    assert (answer.code, answer.text) == (grpc.StatusCode.OK, "Hello")
    assert await ask(stage, credentials()) == "thinker"


BROKEN: dict[str, dict[str, bytes]] = {
    "no certificate": {"tls.key": PAIR.key},
    "no key": {"tls.crt": PAIR.certificate},
    "empty certificate": {"tls.crt": b"\n", "tls.key": PAIR.key},
    "half a certificate": {"tls.crt": PAIR.certificate[:200], "tls.key": PAIR.key},
    "key in place of the certificate": {"tls.crt": PAIR.key, "tls.key": PAIR.key},
    "certificate in place of the key": {"tls.crt": PAIR.certificate, "tls.key": PAIR.certificate},
    "damaged key": {"tls.crt": PAIR.certificate, "tls.key": PAIR.key.replace(b"M", b"A", 3)},
    "key of another certificate": {"tls.crt": PAIR.certificate, "tls.key": CA.issue().key},
    "encrypted key": {
        "tls.crt": PAIR.certificate,
        "tls.key": ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        ),
    },
    "a curve that gRPC does not speak": tls_files(CA.issue(key=ec.generate_private_key(ec.SECP256K1()))),
    "a key that gRPC's clients do not take": tls_files(CA.issue(key=ed25519.Ed25519PrivateKey.generate())),
    "a short key": tls_files(CA.issue(key=rsa.generate_private_key(65537, 1024))),  # noqa: S505
    "too much": {"tls.crt": PAIR.certificate + b"#" * (1 << 20), "tls.key": PAIR.key},
}


@pytest.mark.parametrize("files", BROKEN.values(), ids=BROKEN)
async def test_a_broken_renewal_keeps_the_certificate_and_is_told_once(
    kit: Any, secret: MountedSecret, files: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    stage = await kit.serve(listen=listen(secret))
    with caplog.at_level(logging.INFO, logger="omni_stage.service.server.tls"):
        secret.write(files)
        await until(lambda: stage.registry.get_sample_value(REJECTED) == 1, 20)
        await asyncio.sleep(0.1)
        assert await shown_serial(stage) == PAIR.serial
        secret.write(tls_files(PAIR))
        await until(lambda: stage.registry.get_sample_value(REJECTED) == 0, 20)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "of Secret entry-cert" in errors[0]
    assert "BEGIN" not in caplog.text
    renewed = CA.issue(lasts=9 * DAY)
    secret.write(tls_files(renewed))
    await until(lambda: stage.registry.get_sample_value(EXPIRY) == renewed.not_after.timestamp(), 20)
    assert await shown_serial(stage) == renewed.serial


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


# Reading ------------------------------------

WORDS = {
    "no certificate": ("tls.crt", "does not exist"),
    "no key": ("tls.key", "does not exist"),
    "empty certificate": ("tls.crt", "is empty"),
    "half a certificate": ("tls.crt", "damaged"),
    "key in place of the certificate": ("tls.crt", "holds no certificates"),
    "certificate in place of the key": ("tls.key", "holds no private key"),
    "damaged key": ("tls.key", "damaged"),
    "key of another certificate": ("tls.key", "is not the key of tls.crt"),
    "encrypted key": ("tls.key", "passphrase"),
    "a curve that gRPC does not speak": ("tls.key", "P-256"),
    "a key that gRPC's clients do not take": ("tls.key", "P-256"),
    "a short key": ("tls.key", "2048"),
    "too much": ("tls.crt", "1048576 bytes"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    secret = MountedSecret(tmp_path / "secret", BROKEN[name])
    file, words = WORDS[name]
    with pytest.raises(ConfigurationError, match=words) as failure:
        tls.read_certificate(ServerTls(directory=str(secret.directory), source="Secret entry-cert"))
    assert str(failure.value).startswith(f"{file} of Secret entry-cert ")
    assert failure.value.details.field == f"listen.tls.{file}"


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP384R1()),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=["P-256", "P-384", "RSA 2048"],
)
async def test_keys_that_are_taken_work(kit: Any, tmp_path: Path, key: Any) -> None:
    secret = MountedSecret(tmp_path / "secret", tls_files(CA.issue(key=key)))
    assert await ask(await kit.serve(listen=listen(secret)), credentials()) == "thinker"


@pytest.mark.parametrize(
    ("ca", "words"), [(None, "does not exist"), (b"no certificate", "holds no certificates")], ids=["missing", "junk"]
)
def test_required_client_certificates_need_a_ca(tmp_path: Path, ca: bytes | None, words: str) -> None:
    secret = MountedSecret(tmp_path / "secret", tls_files(PAIR, ca))
    settings = ServerTls.model_validate({"directory": str(secret.directory), "clientCertificates": "Required"})
    with pytest.raises(ConfigurationError, match=words) as failure:
        tls.read_certificate(settings)
    assert failure.value.details.field == "listen.tls.ca.crt"
    assert str(failure.value).startswith(f"ca.crt in {secret.directory} ")


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_damage_raises_nothing_else(tmp_path: Path, name: str) -> None:
    """What is not understood must not end the watch: bytes of the DER inside and of the PEM around it."""
    randoms = random.Random(name)
    files = tls_files(PAIR, CA.certificate)
    secret = MountedSecret(tmp_path / "secret", files)
    settings = ServerTls.model_validate({"directory": str(secret.directory), "clientCertificates": "Required"})
    refused = []
    for _ in range(1500):
        head, body, tail = files[name].partition(files[name].splitlines(keepends=True)[1])
        inner = bytearray(base64.b64decode(body + tail.rpartition(b"-----END")[0]))
        for _ in range(randoms.choice((1, 1, 1, 2, 8))):
            inner[randoms.randrange(len(inner))] = randoms.randrange(256)
        damaged = head + base64.encodebytes(inner) + tail[tail.index(b"-----END") :]
        if randoms.random() < 0.2:
            place = randoms.randrange(len(damaged))
            damaged = damaged[:place] + randoms.randbytes(2) + damaged[place + 2 :]
        (secret.directory / name).unlink()
        (secret.directory / name).write_bytes(damaged)
        try:
            tls.read_certificate(settings)
        except ConfigurationError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert all(message.startswith("ca.crt " if name == "ca.crt" else "tls.") for message in refused)


def test_the_key_is_in_no_repr(secret: MountedSecret) -> None:
    assert "PRIVATE" not in repr(tls.read_certificate(ServerTls(directory=str(secret.directory))))


def test_a_swap_between_two_files_is_read_again(
    tmp_path: Path, secret: MountedSecret, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = CA.issue()
    read, reads = tls._read, []

    def read_and_swap(settings: ServerTls, name: str) -> bytes:
        content = read(settings, name)
        reads.append(name)
        if len(reads) == 1:
            secret.write(tls_files(renewed))
        return content

    monkeypatch.setattr(tls, "_read", read_and_swap)
    found = tls.read_certificate(ServerTls(directory=str(secret.directory)))
    assert (found.chain, found.key) == (renewed.certificate, renewed.key)
    assert reads == ["tls.crt", "tls.key"] * 3


def test_a_stage_without_its_certificate_ends_with_78_before_it_loads_anything(tmp_path: Path) -> None:
    secret = MountedSecret(tmp_path / "secret", {})
    config = StageConfig.model_validate(
        {
            "pipeline": "web",
            "stage": "thinker",
            # Of the components, the one whose server imports no vLLM.
            "component": "sim/thinker",
            "model": {"path": str(tmp_path / "missing")},
            "listen": listen(secret),
        }
    )
    (tmp_path / "stage.yaml").write_text(config.to_yaml())
    note = tmp_path / "termination"
    done = subprocess.run(
        [sys.executable, "-m", "omni_stage", "serve", "--config", str(tmp_path / "stage.yaml")],
        env={**os.environ, "OMNI_TERMINATION_LOG": str(note)},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 78
    assert json.loads(note.read_text()) == {
        "reason": "InvalidConfiguration",
        "message": "tls.crt of Secret entry-cert does not exist",
        "field": "listen.tls.tls.crt",
    }
