"""Client secrets: keys that live for minutes, with which a browser opens sessions in the name of an API key.

    ek_PAYLOAD.SIGNATURE        both in base64url; PAYLOAD is compressed JSON: {key, expires_at, session}

No replica keeps any: each one verifies the signature, whose key is made from the signing secret of the file of keys and
from the hash of the API key. So a secret ends early when its API key is removed or replaced. It is signed, not
encrypted: who has it may read the session that it holds.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from omni_gateway.errors import AuthenticationError, InvalidRequestError, NotImplementedHereError
from omni_gateway.guard.keys import BEARER, KeyRing
from omni_gateway.rights import ApiKey

PREFIX: Final = "ek_"
MAX_CHARS: Final = 6144
"""Maximum length: a browser sends the secret in one line of a handshake, and servers read lines of 8 KiB."""
MAX_SESSION_BYTES: Final = 64 << 10
"""Maximum length of a session as JSON."""
_PURPOSE: Final = b"omnipipeline client secret\0"


@dataclass(frozen=True, slots=True)
class SecretGrant:
    """What a client secret grants."""

    key: ApiKey | None
    """The API key in whose name it acts; None in a gateway without keys."""
    session: Mapping[str, Any]
    """The session that it was made for, as its maker wished it."""


class ClientSecrets:
    """Makes and reads client secrets."""

    def __init__(self, keys: KeyRing | None, clock: Callable[[], float]) -> None:
        """keys: None for a gateway that accepts every request, whose secrets protect nothing. clock: returns seconds
        since the epoch, on which all replicas agree."""
        self._keys = keys
        self._clock = clock

    def make(self, key: str, session: Mapping[str, Any], seconds: int) -> tuple[str, int]:
        """Returns a secret and when it expires, in seconds since the epoch. key: name of the API key.

        Raises InvalidRequestError, NotImplementedHereError, AuthenticationError.
        """
        expires_at = int(self._clock()) + seconds
        whole = json.dumps({"key": key, "expires_at": expires_at, "session": session}, separators=(",", ":")).encode()
        payload = base64.urlsafe_b64encode(zlib.compress(whole, 9)).rstrip(b"=")
        text = f"{PREFIX}{payload.decode()}.{self._sign(payload, self._find(key))}"
        if len(whole) > MAX_SESSION_BYTES or len(text) > MAX_CHARS:
            raise InvalidRequestError(
                "The session is too long for a client secret, which is sent in one header; send instructions and tools "
                "with session.update.",
                param="session",
                code="string_above_max_length",
            )
        return text, expires_at

    def open(self, authorization: str | None) -> SecretGrant | None:
        """Returns what a header `Authorization: Bearer ek_...` grants, None if it has no client secret.

        Raises AuthenticationError.
        """
        scheme, _, text = (authorization or "").partition(" ")
        text = text.strip()
        if scheme.lower() != BEARER or not text.startswith(PREFIX):
            return None
        payload, _, signature = text.removeprefix(PREFIX).encode("ascii", "replace").partition(b".")
        content = _read(payload) if len(text) <= MAX_CHARS else {}
        name, session, expires_at = content.get("key"), content.get("session"), content.get("expires_at")
        if not isinstance(name, str) or not isinstance(session, dict) or not isinstance(expires_at, int):
            raise AuthenticationError("The client secret is not valid.")
        key = self._find(name)
        if not hmac.compare_digest(self._sign(payload, key).encode(), signature):
            raise AuthenticationError("The client secret is not valid.")
        if self._clock() >= expires_at:
            raise AuthenticationError("The client secret has expired; make another one.", code="expired_client_secret")
        return SecretGrant(key, session)

    def _find(self, name: str) -> ApiKey | None:
        if self._keys is None:
            return None
        found = self._keys.find(name)
        if found is None:
            raise AuthenticationError("The client secret is not valid.")  # the same as of a wrong signature
        return found

    def _sign(self, payload: bytes, key: ApiKey | None) -> str:
        secret = b""
        if self._keys is not None and key is not None:
            signing = self._keys.signing_secret
            if signing is None:
                raise NotImplementedHereError(
                    "Client secrets are turned off here: the file of keys has no signingSecret; use an API key."
                )
            secret = signing.encode() + bytes.fromhex(key.sha256)
        made = hmac.new(hashlib.sha256(_PURPOSE + secret).digest(), payload, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(made).rstrip(b"=").decode()


def _read(payload: bytes) -> dict[str, Any]:
    """Returns a payload's content, of a bounded size; empty if it is none. Its signature is not checked."""
    try:
        packed = base64.b64decode(payload + b"=" * (-len(payload) % 4), altchars=b"-_", validate=True)
        found = json.loads(zlib.decompressobj().decompress(packed, 2 * MAX_SESSION_BYTES))
    except (binascii.Error, zlib.error, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
