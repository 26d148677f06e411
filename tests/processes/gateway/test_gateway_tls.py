"""While the gateway serves, its server certificate and the client certificate for entry stages can be renewed."""

from __future__ import annotations

import itertools
import os
import ssl
import time
from pathlib import Path

import grpc
import httpx
import pytest
from cryptography import x509

from omni_gateway.__main__ import parse_endpoint
from omni_gateway.entries.pipelines import ServedPipeline, entry_tls
from omni_gateway.http_server import server
from omni_gateway.settings import GatewaySettings
from support.peers.answering_entry import WORDS, serve_entry
from support.peers.certificates import Authority, MountedSecret, Pair, tls_files
from support.peers.gateways import serve_gateway
from support.processes.polling import PATIENCE_S, wait_until

HOST = "omni.models.svc"
_times = itertools.count(1_700_000_000)


def ask(url: str, verify: ssl.SSLContext | bool = True) -> httpx.Response:
    asked = {"model": "omni", "messages": [{"role": "user", "content": "Hello"}]}
    return httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=PATIENCE_S, verify=verify)


def write(secret: MountedSecret, files: dict[str, bytes]) -> None:
    """Writes renewed files with a new modification time, because a file system may give two writes the same time."""
    secret.write(files)
    moment = next(_times)
    for name in files:
        os.utime((secret.directory / name).resolve(), (moment, moment))


def shown_serial(url: str) -> int:
    """Returns the serial number of the certificate that the server presents to a new connection."""
    port = httpx.URL(url).port
    assert port is not None
    pem = ssl.get_server_certificate(("127.0.0.1", port), timeout=PATIENCE_S)
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


def test_the_own_certificate_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New connections get the renewed certificate, and open ones continue. A certificate without its key is not
    used."""
    monkeypatch.setattr(server, "CHECK_S", 0.05)
    authority = Authority("cert-manager")
    first, second, third = (authority.issue(hosts=["localhost"]) for _ in range(3))
    secret = MountedSecret(tmp_path / "tls", tls_files(first))
    trusted = ssl.create_default_context(cadata=authority.certificate.decode())
    with serve_gateway(tls_dir=secret.directory) as url:
        local = url.replace("127.0.0.1", "localhost")
        with httpx.Client(verify=trusted, base_url=local) as client:
            assert client.get("/health").status_code == 200
            assert shown_serial(url) == first.serial
            write(secret, tls_files(second))
            wait_until(lambda: shown_serial(url) == second.serial)
            write(secret, tls_files(Pair(third.certificate, first.key, third.serial, third.not_after)))
            time.sleep(0.5)
            assert shown_serial(url) == second.serial, "a certificate without its key is not used"
            write(secret, tls_files(third))
            wait_until(lambda: shown_serial(url) == third.serial)
            assert client.get("/health").status_code == 200


def test_no_handshake_fails_while_certificates_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pair replaces the other in one step, so a client never meets a certificate with another one's key."""
    monkeypatch.setattr(server, "CHECK_S", 0.0)
    authority = Authority("cert-manager")
    pairs = [authority.issue(hosts=["localhost"]) for _ in range(2)]
    secret = MountedSecret(tmp_path / "tls", tls_files(pairs[0]))
    with serve_gateway(tls_dir=secret.directory) as url:
        shown = []
        for number in range(200):
            write(secret, tls_files(pairs[number % 2]))
            shown.append(shown_serial(url))
    assert set(shown) == {pair.serial for pair in pairs}


def test_an_entry_gets_the_certificate_that_it_requires_and_then_the_renewed_one(tmp_path: Path) -> None:
    """Entry and gateway both change to certificates of another authority without a restart."""
    old, new = Authority("this year"), Authority("next year")
    asked = {"authority": old}

    def configuration() -> grpc.ServerCertificateConfiguration:
        authority = asked["authority"]
        pair = authority.issue(hosts=[HOST])
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], authority.certificate)

    credentials = grpc.dynamic_ssl_server_credentials(
        configuration(), configuration, require_client_authentication=True
    )
    files = tls_files(old.issue("gateway"), old.certificate)
    secret = MountedSecret(tmp_path / "client", files)
    settings = GatewaySettings(
        entry_ca=str(secret.directory / "ca.crt"),
        entry_certificate=str(secret.directory / "tls.crt"),
        entry_key=str(secret.directory / "tls.key"),
    )
    with serve_entry(credentials) as (port, starts):
        endpoint = f"grpcs://127.0.0.1:{port}"
        good = ServedPipeline("omni", endpoint, tls=entry_tls(endpoint, settings, server_name=HOST))
        with serve_gateway(good, settings=settings) as url:
            answer = ask(url)
            assert answer.json()["choices"][0]["message"]["content"] == "".join(WORDS)
            asked["authority"] = new
            write(secret, tls_files(new.issue("gateway"), new.certificate))
            assert ask(url).status_code == 200
            assert len(starts) == 2
        # If the gateway has no client certificate, the entry closes the connection, and the gateway answers 503.
        nobody = GatewaySettings(entry_ca=settings.entry_ca)
        bare = ServedPipeline("omni", endpoint, tls=entry_tls(endpoint, nobody, server_name=HOST))
        with serve_gateway(bare, settings=nobody) as url:
            answer = ask(url)
            assert answer.status_code == 503, answer.text
            assert len(starts) == 2


def test_plaintext_entries_need_nothing() -> None:
    settings = GatewaySettings(entry_ca="/ca.crt")
    assert entry_tls("grpc://a:1", settings) is None
    assert entry_tls("grpcs://a:1", GatewaySettings()) is None
    assert entry_tls("grpcs://a:1", settings) is not None


def test_endpoints_of_the_command_line_get_what_the_settings_say() -> None:
    settings = GatewaySettings(entry_ca="/ca.crt", model_aliases={"tts-1": "a", "other": "b"})
    plain = parse_endpoint("a=grpc://h:1", settings)
    assert (plain.name, plain.endpoint, plain.aliases, plain.tls) == ("a", "grpc://h:1", ("tts-1",), None)
    secure = parse_endpoint("b=grpcs://h:1", settings)
    assert secure.tls is not None
    assert secure.tls.ca == "/ca.crt"
