"""Pseudonyms of users, which the gateway sends to entry stages.

An entry stage delays its refusals to a client whose calls it refuses often. To the stage, all users of a gateway have
the gateway's address. So the gateway adds a pseudonym of the user to each call (omni_proto.rpc.metadata), and one
user's refused calls do not delay another user's. A pseudonym stays the same while this gateway runs, and reveals
nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

_BYTES: Final = 12


class Pseudonyms:
    """Makes pseudonyms with a random secret of this process."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(hashlib.blake2s.MAX_KEY_SIZE)

    def of(self, key: str, address: str) -> str:
        """Returns a user's pseudonym, in hexadecimal digits: made from the API key's name, else from the address."""
        known = f"key {key}" if key else f"address {address}"
        return hashlib.blake2s(known.encode(), key=self._secret, digest_size=_BYTES).hexdigest()
