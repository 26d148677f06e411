"""Valid and damaged certificates of an entry stage, and clients that connect to the entry."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import grpc
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from omni_proto.stage.v1 import stage_service_pb2 as pb, stage_service_pb2_grpc
from support.peers.certificates import Authority, MountedSecret, Pair, tls_files
from support.processes.polling import PATIENCE_S

CA = Authority("ours")
OTHER = Authority("somebody else's")
PAIR = CA.issue()


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
    """Returns the stage's name, requested over a new connection."""
    async with connect(stage, trust) as stub:
        answer = await stub.GetStage(pb.GetStageRequest(), timeout=PATIENCE_S)
    return str(answer.stage)


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
