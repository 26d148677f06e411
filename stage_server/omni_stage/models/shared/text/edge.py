"""Text on an edge: the rows of schema omni/text, in both directions."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

import numpy as np

from omni_proto.tensors import UTF8
from omni_proto.writing import SentenceCutter
from omni_stage.errors import InvalidTensorError
from omni_stage.exchange import Array, EngineStep, view_bytes
from omni_stage.models.component import EdgeInput, EdgeStream, Emitter, StageStep

TEXT_FIELD: Final = f"tensors.{UTF8}"
_UTF8: Final = codecs.getincrementaldecoder("utf-8")


def text_rows(text: str) -> dict[str, Array]:
    """Returns the rows of a text: StageStep.tensors of a component that publishes text. Empty for an empty text."""
    if not text:
        return {}
    return {UTF8: np.frombuffer(bytearray(text.encode("utf-8", "replace")), np.uint8)}


def read_text(tensors: Mapping[str, Any]) -> str:
    """Returns the text of complete rows (EdgeInput.tensors). Raises InvalidTensorError if they are not UTF-8."""
    return TextReader().read(tensors, ended=True)


class TextReader:
    """Reads one request's text as its rows arrive."""

    def __init__(self) -> None:
        self._decoder = _UTF8()

    def read(self, tensors: Mapping[str, Any], *, ended: bool) -> str:
        """Returns the text of the next rows, as far as its characters are complete (EdgeRows.tensors, EdgeRows.ended).

        Raises InvalidTensorError if the rows are not UTF-8.
        """
        data = view_bytes(tensors[UTF8]) if UTF8 in tensors else b""
        try:
            return self._decoder.decode(data, final=ended)
        except UnicodeDecodeError as error:
            raise InvalidTensorError.of(UTF8, "the rows are not UTF-8") from error


async def iterate_text(source: EdgeInput | EdgeStream) -> AsyncGenerator[str, None]:
    """Yields the text of an edge as it arrives. Raises InvalidTensorError."""
    if isinstance(source, EdgeInput):
        yield read_text(source.tensors)
        return
    reader, ended = TextReader(), False
    while not ended:
        rows = await source.read()
        ended = rows.ended
        yield reader.read(rows.tensors, ended=ended)


async def spoken_parts(
    source: EdgeInput | EdgeStream, cutter: SentenceCutter | None = None
) -> AsyncGenerator[str, None]:
    """Yields the text of an edge in parts to speak, each as soon as it is complete. Raises InvalidTensorError."""
    cutter = cutter or SentenceCutter()
    async with aclosing(iterate_text(source)) as pieces:
        async for piece in pieces:
            for part in cutter.add(piece):
                yield part
    for part in cutter.end():
        yield part


class TextPublisher:
    """Publishes the text that another emitter returns to the client."""

    def __init__(self, inner: Emitter) -> None:
        self._inner = inner

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one step as the other emitter does, and add the rows of its text."""
        made = self._inner.emit(step)
        made.tensors = text_rows(made.text)
        return made
