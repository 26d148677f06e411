"""Shows an answer's text on standard output as it arrives."""

from __future__ import annotations

import io
import os
from typing import TextIO


class Screen:
    """A stream that shows text. Characters that its encoding does not have are written as escapes.

    If text can no longer be written, because the disk is full or the reader has gone, `error` says why. Further text is
    then dropped.
    """

    def __init__(self, stream: TextIO, *, required: bool) -> None:
        """required: raise the error too, because the text is all that the user wants."""
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        self._stream = stream
        self._required = required
        self.error: OSError | None = None

    def write(self, text: str) -> None:
        """Show the text immediately. Raises OSError if it is required and cannot be written."""
        if self.error is not None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            self.error = error
            self._discard()
            if self._required:
                raise

    def _discard(self) -> None:
        """Redirect the stream to /dev/null. Otherwise Python would try to write the rest when it exits, and fail."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
