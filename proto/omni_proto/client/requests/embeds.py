"""Encodes a prompt of embeddings: the header for Start, and the rows in chunks. Needs the package google-crc32c."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from omni_proto.errors import ArgumentError
from omni_proto.stage.v1.stage_service_pb2 import GenerateRequest
from omni_proto.stage.v1.tensors_pb2 import DTYPE_BFLOAT16, DTYPE_FLOAT16, DTYPE_FLOAT32, TensorChunk, TensorHeader

if TYPE_CHECKING:
    from typing_extensions import Buffer

TENSOR_NAME: Final = "prompt_embeds"
CHUNK_BYTES: Final = 1024 * 1024
MAX_ROW_BYTES: Final = 4 * 1024 * 1024
"""The protocol's limit for one row, because a row never spans messages."""
_DTYPES: Final = {"f": DTYPE_FLOAT32, "e": DTYPE_FLOAT16, "H": DTYPE_BFLOAT16}
"""Element types by the format of a buffer's elements."""


@dataclass(frozen=True, slots=True)
class EmbedsPrompt:
    """Embeddings [rows, hidden size], ready to send; a retry sends them again."""

    header: TensorHeader
    """The header that Start carries."""
    data: memoryview
    """The rows as bytes."""

    def messages(self) -> Iterator[GenerateRequest]:
        """Yields the rows in chunks of about 1 MiB. Each chunk has only complete rows, and a checksum."""
        import google_crc32c

        rows = self.header.max_rows
        row_bytes = len(self.data) // rows
        step = max(1, CHUNK_BYTES // row_bytes)
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            part = bytes(self.data[begin * row_bytes : end * row_bytes])
            chunk = TensorChunk(
                name=TENSOR_NAME,
                row_offset=begin,
                rows=end - begin,
                crc32c=google_crc32c.value(part),
                last=end == rows,
                data=part,
            )
            yield GenerateRequest(tensor=chunk)


def embeds_prompt(array: Buffer) -> EmbedsPrompt:
    """Returns the prompt for a C-contiguous buffer [rows, hidden size], such as a numpy array.

    Elements are float32 or float16; uint16 means the bits of bfloat16 (torch: `tensor.view(torch.uint16).numpy()`).
    Raises ArgumentError.
    """
    try:
        import google_crc32c  # noqa: F401 - reports a missing package before the call begins
    except ImportError as error:
        raise ArgumentError("prompt_embeds needs the package google-crc32c; install omnipipeline[stage]") from error
    try:
        view = memoryview(array)
    except TypeError as error:
        raise ArgumentError(
            f"prompt_embeds must be a buffer such as a numpy array, got {type(array).__name__}"
        ) from error
    dtype = _DTYPES.get(view.format.removeprefix("<"))
    if dtype is None or view.ndim != 2 or not view.c_contiguous or not view.nbytes:
        raise ArgumentError(
            "prompt_embeds must be [rows, hidden size], C-contiguous and not empty, of float32, float16, or uint16 for "
            "the bits of bfloat16"
        )
    rows, hidden_size = (int(size) for size in view.shape or ())
    if view.nbytes // rows > MAX_ROW_BYTES:
        raise ArgumentError(f"a row of prompt_embeds has {view.nbytes // rows} bytes, at most {MAX_ROW_BYTES}")
    header = TensorHeader(name=TENSOR_NAME, dtype=dtype, row_shape=[hidden_size], max_rows=rows)
    return EmbedsPrompt(header, view.cast("B"))
