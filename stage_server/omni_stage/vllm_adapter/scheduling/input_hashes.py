"""Prefix caching in a stage whose prompts are input rows: hashes of KV blocks that cover the rows too.

vLLM's hash of a block covers token ids, media, adapters and, in the first block, the salt. A talker's prompt is made of
placeholders, and what differs are the rows and M-RoPE positions that come with the request. So a block of the prompt is
hashed together with their digests (payloads/input_digests.py). A block of which a position lies beyond the prompt, or
has no digest, is found by its own request only: a sampled frame reads codes that vLLM does not know.

Private interfaces of vLLM 0.32:
- `Request._block_hasher` and `Request.block_hashes` (v1/request.py): called for new full blocks, also when a session
  takes its next part. The hasher must not refer to the request, or requests would be freed late.
- `hash_block_tokens` and `generate_block_hash_extra_keys` (v1/core/kv_cache_utils.py): the parts of vLLM's own hasher.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import BlockHash, generate_block_hash_extra_keys, hash_block_tokens
from vllm.v1.request import Request

from omni_stage.payloads.input_digests import DIGEST_BYTES, GROUP, OMNI_DIGESTS_KEY


class InputHashes:
    """Hashes the blocks of one engine's requests. Called by its scheduler, on one thread."""

    def __init__(self, block_tokens: int, algorithm: str) -> None:
        """`algorithm`: vLLM's name of the hash function, its `prefix_caching_hash_algo`."""
        self._block_tokens = block_tokens
        self._hash = get_hash_fn_by_name(algorithm)
        self._numbers = count()

    def adopt(self, request: Request) -> None:
        """Replace the hashes of a request that the scheduler does not have yet, and of all its blocks to come."""
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        digests = extra.get(OMNI_DIGESTS_KEY, b"") if self._block_tokens % GROUP == 0 else b""
        known = min(request.num_prompt_tokens, len(digests) // DIGEST_BYTES * GROUP)
        request._block_hasher = partial(
            _hash_blocks,
            size=self._block_tokens,
            hash_function=self._hash,
            digests=digests,
            known=known,
            number=next(self._numbers),
        )
        request.block_hashes.clear()
        request.update_block_hashes()


def _hash_blocks(
    request: Request, *, size: int, hash_function: Callable[[Any], bytes], digests: bytes, known: int, number: int
) -> list[BlockHash]:
    """Returns the hashes of the request's full blocks that have none yet.

    `known`: how many positions of the prompt have digests; `number`: no other request of the engine has it.
    """
    hashes: list[BlockHash] = []
    last = request.block_hashes[-1] if request.block_hashes else None
    for start in range(len(request.block_hashes) * size, request.num_tokens - size + 1, size):
        end = start + size
        extra, _ = generate_block_hash_extra_keys(request, start, end, 0)
        key: tuple[str, bytes | int] = ("request", number)
        if end <= known:
            key = ("inputs", digests[start // GROUP * DIGEST_BYTES : end // GROUP * DIGEST_BYTES])
        tokens = request.all_token_ids[start:end]
        last = hash_block_tokens(hash_function, last, tokens, (*(extra or ()), key))
        hashes.append(last)
    return hashes
