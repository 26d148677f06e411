"""Client secrets: what they grant, for how long, and that nobody else can make one."""

from __future__ import annotations

import base64
import json
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from omni_gateway.errors import AuthenticationError, InvalidRequestError, NotImplementedHereError
from omni_gateway.guard.client_secrets import MAX_CHARS, ClientSecrets
from omni_gateway.guard.keys import KeyRing, hash_key

SESSION = {"type": "realtime", "model": "m", "instructions": "Be brief."}


def ring(folder: Path, key: str = "k", signing: str = "s" * 32, name: str = "keys.yaml") -> KeyRing:
    file = folder / name
    lines = [f"signingSecret: {signing}"] if signing else []
    file.write_text("\n".join([*lines, f"keys:\n- {{name: one, sha256: {hash_key(key)}}}"]))
    return KeyRing(file)


def opens(secrets: ClientSecrets, text: str) -> bool:
    try:
        return secrets.open(f"Bearer {text}") is not None
    except AuthenticationError:
        return False


def test_every_replica_opens_a_secret_until_it_expires(tmp_path: Path) -> None:
    text, expires_at = ClientSecrets(ring(tmp_path), lambda: 1000.5).make("one", SESSION, 600)
    assert expires_at == 1600
    opened = ClientSecrets(ring(tmp_path), lambda: 1599.9).open(f"bearer {text}")
    assert opened is not None
    assert opened.key is not None
    assert (opened.key.name, opened.session) == ("one", SESSION)
    with pytest.raises(AuthenticationError) as expired:
        ClientSecrets(ring(tmp_path), lambda: 1600).open(f"Bearer {text}")
    assert expired.value.specific_code == "expired_client_secret"


@pytest.mark.parametrize("change", [{"key": "other"}, {"signing": "t" * 32}, {"signing": ""}])
def test_a_secret_ends_with_its_key_and_with_the_signing_secret(tmp_path: Path, change: dict[str, str]) -> None:
    text, _ = ClientSecrets(ring(tmp_path), lambda: 0).make("one", SESSION, 600)
    changed = ClientSecrets(ring(tmp_path, **change, name="changed"), lambda: 0)
    with pytest.raises((AuthenticationError, NotImplementedHereError)):
        changed.open(f"Bearer {text}")


def test_no_byte_of_a_secret_can_be_changed(tmp_path: Path) -> None:
    secrets = ClientSecrets(ring(tmp_path), lambda: 0)
    text, _ = secrets.make("one", SESSION, 600)
    assert opens(secrets, text)
    digits = random.Random(0)
    for place in range(3, len(text) - 1):  # the last digit of base64 has bits that count nothing
        other = digits.choice([one for one in "AZaz09-_" if one != text[place]])
        assert not opens(secrets, text[:place] + other + text[place + 1 :]), place
    for wrong in ("ek_", "ek_.", "ek_a", "ek_\u00e9.x", "ek_" + "a" * (2 * MAX_CHARS)):
        assert not opens(secrets, wrong)


def forge(content: Any) -> str:
    """Returns a secret that nobody signed."""
    packed = zlib.compress(json.dumps(content).encode() if not isinstance(content, bytes) else content)
    return f"ek_{base64.urlsafe_b64encode(packed).decode().rstrip('=')}.{'A' * 43}"


@pytest.mark.parametrize(
    "content",
    [
        {"key": "one", "expires_at": 10**9, "session": {}},
        {"key": "nobody", "expires_at": 10**9, "session": {}},
        {"key": ["one"], "expires_at": "", "session": 1},
        [],
        bytes(1 << 22),
        b"[" * 100_000,
    ],
)
def test_a_forged_secret_is_refused_whatever_it_holds(tmp_path: Path, content: Any) -> None:
    for keys in (ring(tmp_path), None):
        with pytest.raises(AuthenticationError) as refused:
            ClientSecrets(keys, lambda: 0).open(f"Bearer {forge(content)}")
        assert refused.value.message == "The client secret is not valid."


def test_other_keys_are_none_of_its_business(tmp_path: Path) -> None:
    for header in (None, "Bearer sk-omni-1", "Basic ek_1", ""):
        assert ClientSecrets(ring(tmp_path), lambda: 0).open(header) is None


def test_a_session_that_no_header_can_hold_is_refused(tmp_path: Path) -> None:
    letters = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=10_000))
    for text in (letters, "a" * (1 << 20)):
        with pytest.raises(InvalidRequestError) as refused:
            ClientSecrets(ring(tmp_path), lambda: 0).make("one", {"instructions": text}, 600)
        assert refused.value.param == "session"
