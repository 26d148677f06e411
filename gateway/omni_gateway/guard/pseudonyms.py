"""Names of users for entry stages: the same for one user while this gateway runs, and meaning nothing elsewhere.

An entry stage lets clients wait whose calls are refused often (omni_proto.rpc.metadata). All users of a gateway have
the gateway's address, so that it names them: one user's refused calls do not delay another's.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

_BYTES: Final = 12


class Pseudonyms:
    """Makes names from a secret of its own."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(hashlib.blake2s.MAX_KEY_SIZE)

    def of(self, key: str, address: str) -> str:
        """Returns the name for a user: by the name of its API key, else by its address. Hexadecimal digits."""
        known = f"key {key}" if key else f"address {address}"
        return hashlib.blake2s(known.encode(), key=self._secret, digest_size=_BYTES).hexdigest()
