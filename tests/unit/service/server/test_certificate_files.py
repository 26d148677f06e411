"""The certificate's files: which keys are accepted, and errors that name what is wrong."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from omni_proto.stage_config import ServerTls, StageConfig
from omni_stage.errors import ConfigurationError
from omni_stage.service.server import tls
from support.peers.certificates import MountedSecret, tls_files
from support.peers.tls_entries import BROKEN, CA, PAIR, ask, credentials, listen
from support.processes.polling import PATIENCE_S

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
    """Random damage of the DER or of the PEM around it raises only ConfigurationError, which the watch survives."""
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
    """If the Secret changes between two reads, all files are read again."""
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
            # The server of this component does not import vLLM.
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
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 78
    assert json.loads(note.read_text()) == {
        "reason": "InvalidConfiguration",
        "message": "tls.crt of Secret entry-cert does not exist",
        "field": "listen.tls.tls.crt",
    }
