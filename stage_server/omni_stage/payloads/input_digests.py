"""Digests of what a prompt's positions read besides their tokens, by which a KV cache compares such prompts.

The stage server makes one digest for every GROUP positions, in the thread that prepares the request. The scheduler puts
them into the hashes of KV blocks (vllm_adapter/scheduling/input_hashes.py).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import torch

OMNI_DIGESTS_KEY: Final = "omni_digests"
"""bytes: what `digest_inputs` returns for the request's prompt."""
GROUP: Final = 16
DIGEST_BYTES: Final = 32


def digest_inputs(rows: torch.Tensor, mrope_positions: torch.Tensor) -> bytes:
    """Returns the digests of a prompt's groups of GROUP positions, one after another; none of an incomplete group.

    `rows` [R, D]: row p belongs to position p; `mrope_positions`: int64 [P, 3]. Equal digests mean equal bits, dtypes
    and widths. It takes a millisecond per MiB or two.
    """
    count = min(rows.shape[0], mrope_positions.shape[0]) // GROUP
    kind = f"{rows.dtype} {rows.shape[1]}\n".encode()
    digests = [sha256(kind) for _ in range(count)]
    for tensor in (rows, mrope_positions):
        values = tensor[: count * GROUP].contiguous().view(torch.uint8).numpy()
        for index, digest in enumerate(digests):
            digest.update(values[index * GROUP : (index + 1) * GROUP].data)
    return b"".join(digest.digest() for digest in digests)
