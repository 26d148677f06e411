"""Which calls are turns of one conversation, so that they can go to the pod that has its prefix cached. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from omni_proto.rpc.balance.choice import Affinity
from omni_proto.stage.v1.stage_service_pb2 import Start

MAX_HASHED_BYTES: Final = 64 * 1024
"""Bytes of each part of a message that are hashed; conversations rarely differ only after them."""


def affinity_of(start: Start) -> Affinity | None:
    """Returns the affinity of a request: None without a chat.

    All turns of a conversation share its salt and its messages up to the first of the user. A request that contains an
    answer of the model is a later turn.
    """
    messages = start.chat.messages
    if not messages:
        return None
    digest = blake2b(start.cache_salt.encode(), digest_size=8)
    is_later_turn = False
    hashing = True
    for message in messages:
        if hashing:
            digest.update(message.role.encode() + b"\0")
            for part in message.parts:
                media = getattr(part, part.WhichOneof("part") or "text")
                data = media.encode() if isinstance(media, str) else media.data
                digest.update(len(data).to_bytes(8, "big") + data[:MAX_HASHED_BYTES])
        hashing = hashing and message.role != "user"
        is_later_turn = is_later_turn or message.role == "assistant"
    return Affinity(int.from_bytes(digest.digest(), "big"), is_later_turn)
