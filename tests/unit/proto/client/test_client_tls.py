"""TLS of the clients: the meaning of targets and options, and errors that name the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from omni_cli.local.ports import pick_ports
from omni_proto.client import ArgumentError, AsyncOmniClient, ClientTls, OmniClient, OmniRequestError
from omni_proto.client.connection import explain_refusal, plan_connection
from omni_proto.rpc.options import channel_options
from omni_proto.stage.v1 import stage_service_pb2 as pb, stage_service_pb2_grpc
from support.peers.certificates import DAY, Authority, Pair

CA = Authority("ours")
OTHER = Authority("somebody else's")
CREDENTIALS = grpc.ssl_channel_credentials(CA.certificate)


class Servicer(stage_service_pb2_grpc.StageServiceServicer):  # type: ignore[misc]
    def GetStage(self, request: pb.GetStageRequest, context: Any) -> pb.GetStageResponse:
        return pb.GetStageResponse(stage="thinker")


@pytest.fixture
def serve() -> Iterator[Any]:
    """Yields serve(pair, mutual), which starts a server and returns its port.

    pair: the server's certificate and key; None for a plaintext port. mutual: clients must have a certificate.
    """
    servers = []

    def start(pair: Pair | None, mutual: bool = False) -> int:
        server = grpc.server(futures.ThreadPoolExecutor(2))
        servers.append(server)
        stage_service_pb2_grpc.add_StageServiceServicer_to_server(Servicer(), server)
        # Not port 0: gRPC would choose a port that is free on the first address of localhost, and would skip the
        # other address if that port is in use there.
        (free,) = pick_ports(1)
        if pair is None:
            port = server.add_insecure_port(f"localhost:{free}")
        else:
            roots = CA.certificate if mutual else None
            credentials = grpc.ssl_server_credentials([(pair.key, pair.certificate)], roots, mutual)
            port = server.add_secure_port(f"localhost:{free}", credentials)
        server.start()
        return int(port)

    yield start
    for server in servers:
        server.stop(0)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    client = CA.issue("a client")
    encrypted = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    contents = {
        "ca": CA.certificate,
        "other_ca": OTHER.certificate,
        "cert": client.certificate,
        "key": client.key,
        "other_key": CA.issue().key,
        "encrypted": encrypted,
        "junk": b"junk",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return {name: tmp_path / name for name in [*contents, "missing"]}


PLANS: dict[str, tuple[str, dict[str, Any], str, bool]] = {
    "plain target": ("localhost:1", {}, "localhost:1", False),
    "gRPC's own scheme": ("dns:///a.b.svc.:1", {}, "dns:///a.b.svc.:1", False),
    "url of a status": ("grpc://a.b.svc:1", {}, "a.b.svc:1", False),
    "url of a status, TLS": ("grpcs://a.b.svc:1", {}, "a.b.svc:1", True),
    "TLS given twice": ("grpcs://a.b.svc:1", {"tls": True}, "a.b.svc:1", True),
    "plaintext given twice": ("grpc://a.b.svc:1", {"tls": False}, "a.b.svc:1", False),
    "tls": ("localhost:1", {"tls": True}, "localhost:1", True),
    "no tls": ("localhost:1", {"tls": False}, "localhost:1", False),
    "tls with a name": ("localhost:1", {"tls": ClientTls(server_name="a.b")}, "localhost:1", True),
    "credentials": ("localhost:1", {"credentials": CREDENTIALS}, "localhost:1", True),
    "credentials and scheme": ("grpcs://localhost:1", {"credentials": CREDENTIALS}, "localhost:1", True),
}


@pytest.mark.parametrize(("target", "arguments", "address", "is_tls"), PLANS.values(), ids=PLANS)
def test_targets(target: str, arguments: dict[str, Any], address: str, is_tls: bool) -> None:
    plan = plan_connection(target, **arguments)
    assert (plan.target, plan.credentials is not None) == (address, is_tls)
    assert plan.options[: len(channel_options())] == channel_options()


@pytest.mark.parametrize(
    "target",
    [
        *("a:65536", "grpcs://a:0", "a:x", "a:", "dns:///a:99999", "[::1]:-1", "a b:1", "a b", "", "grpc://", ":1"),
        *("::::", "[::1", "[a]:1", "[]:1", "::1::2", "a/b:1", "a:1/path", "me@a:1", "a:1,b:1", "a:\u0661", "unix:"),
    ],
)
def test_a_wrong_address_is_refused(target: str) -> None:
    """gRPC connects to port 34463 for 99999, and calls the others unavailable."""
    with pytest.raises(ArgumentError, match=r"is not HOST:PORT, with a port from 1 to 65535"):
        plan_connection(target)


@pytest.mark.parametrize(
    "target",
    [
        *("a:65535", "dns:///a:1", "dns:a.b", "[::1]:1", "[::1]", "::1", "fe80::1%eth0", "a", "a_b.c-d:1", "ä:1"),
        *("unix:/tmp/a:b", "ipv4:127.0.0.1:1,127.0.0.2:2", "dns://10.0.0.1:53/a:1", "xds:///a"),
    ],
)
def test_addresses_in_grpc_s_forms(target: str) -> None:
    assert plan_connection(target).target == target


@pytest.mark.parametrize("kind", [OmniClient, AsyncOmniClient])
@pytest.mark.parametrize(
    ("target", "arguments", "words"),
    [
        ("grpc://a:1", {"tls": True}, "is plaintext; for TLS begin it with grpcs://"),
        ("grpc://a:1", {"credentials": CREDENTIALS}, "is plaintext"),
        ("grpcs://a:1", {"tls": False}, "is TLS; for plaintext begin it with grpc://"),
        ("a:1", {"tls": True, "credentials": CREDENTIALS}, "give one"),
        ("a:1", {"tls": ClientTls(certificate="x")}, "tls.key is missing"),
        ("a:1", {"tls": ClientTls(key="x")}, "tls.certificate is missing"),
    ],
    ids=["TLS to grpc", "credentials to grpc", "no TLS to grpcs", "two ways", "no key", "no certificate"],
)
def test_contradictions(kind: Any, target: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        kind(target, **arguments)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"ca": "missing"}, "tls.ca: cannot read"),
        ({"ca": "junk"}, "tls.ca: .* holds no certificates"),
        ({"ca": "key"}, "tls.ca: .* holds no certificates"),
        ({"certificate": "missing", "key": "key"}, "tls.certificate: cannot read"),
        ({"certificate": "cert", "key": "missing"}, "tls.key: cannot read"),
        ({"certificate": "cert", "key": "other_key"}, "must be a PEM certificate and its key"),
        ({"certificate": "cert", "key": "encrypted"}, "which has no passphrase"),
        ({"certificate": "junk", "key": "key"}, "must be a PEM certificate and its key"),
    ],
    ids=["no CA", "junk CA", "key as CA", "no certificate", "no key", "wrong key", "encrypted key", "junk certificate"],
)
def test_wrong_files(files: dict[str, Path], names: dict[str, str], words: str) -> None:
    tls = ClientTls(**{field: files[name] for field, name in names.items()})
    with pytest.raises(ArgumentError, match=words):
        OmniClient("localhost:1", tls=tls)


async def both_ask(target: str, tls: ClientTls | None) -> str:
    """Returns the answer that the blocking and the asyncio client both get, or raises their common error."""
    answers = []
    with OmniClient(target, tls=tls) as blocking:
        try:
            answers.append(blocking.get_stage().stage)
        except OmniRequestError as error:
            answers.append(error)
    async with AsyncOmniClient(target, tls=tls) as client:
        try:
            answers.append((await client.get_stage()).stage)
        except OmniRequestError as error:
            answers.append(error)
    first, second = answers
    assert type(first) is type(second)
    if isinstance(first, OmniRequestError):
        assert isinstance(second, OmniRequestError)
        assert first.code is second.code is grpc.StatusCode.UNAVAILABLE
        assert first.message.rpartition("(")[2] == second.message.rpartition("(")[2]
        raise first
    assert first == second
    return str(first)


async def test_both_clients_over_tls(serve: Any, files: dict[str, Path]) -> None:
    port = serve(CA.issue())
    assert await both_ask(f"grpcs://localhost:{port}", ClientTls(ca=files["ca"])) == "thinker"
    assert await both_ask(f"localhost:{port}", ClientTls(ca=files["ca"])) == "thinker"
    port = serve(CA.issue(hosts=["omni.models.svc"]))
    assert await both_ask(f"localhost:{port}", ClientTls(ca=files["ca"], server_name="omni.models.svc")) == "thinker"


async def test_both_clients_with_a_certificate_of_their_own(serve: Any, files: dict[str, Path]) -> None:
    port = serve(CA.issue(), mutual=True)
    own = ClientTls(ca=files["ca"], certificate=files["cert"], key=files["key"])
    assert await both_ask(f"localhost:{port}", own) == "thinker"
    with pytest.raises(OmniRequestError, match="another client certificate"):
        await both_ask(f"localhost:{port}", ClientTls(ca=files["ca"]))


@pytest.mark.parametrize(
    ("pair", "ca", "words"),
    [
        (CA.issue(), "other_ca", "CA is not one that this client trusts"),
        (CA.issue(), None, "CA is not one that this client trusts"),
        (CA.issue(lasts=-DAY), "ca", "has expired: its Secret must be renewed"),
        (CA.issue(hosts=["omni.models.svc"]), "ca", "has other names: use one, or give server_name"),
        (None, "ca", "does not speak TLS: connect without TLS"),
    ],
    ids=["another CA", "public CAs", "expired", "another name", "a plaintext server"],
)
async def test_refusals_say_what_to_do(
    serve: Any, files: dict[str, Path], pair: Pair | None, ca: str | None, words: str
) -> None:
    with pytest.raises(OmniRequestError, match=words):
        await both_ask(f"localhost:{serve(pair)}", ClientTls(ca=ca and files[ca]))


async def test_plaintext_to_tls_says_what_to_do(serve: Any) -> None:
    with pytest.raises(OmniRequestError, match="it may require TLS"):
        await both_ask(f"localhost:{serve(CA.issue())}", None)


@pytest.mark.parametrize(
    "message", ["", "Socket closed", "failed to connect to all addresses; last error: Connection refused"]
)
def test_other_failures_keep_the_message_of_gRPC(message: str) -> None:
    assert explain_refusal(message) == message
