"""The user's audio that belongs to no item yet. Pure."""

from __future__ import annotations

from omni_gateway.realtime.state.config import AudioFormat


class InputBuffer:
    """Audio, and its place in all audio of the session, in milliseconds."""

    def __init__(self, format: AudioFormat) -> None:
        self.format = format
        self.start_ms = 0.0
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    @property
    def end_ms(self) -> float:
        """Where the next audio comes."""
        return self.start_ms + len(self._data) / self.format.bytes_per_ms

    @property
    def milliseconds(self) -> float:
        """Duration of the audio."""
        return len(self._data) / self.format.bytes_per_ms

    def append(self, data: bytes) -> None:
        """Add audio."""
        self._data += data

    def use_format(self, format: AudioFormat) -> None:
        """Take further audio in another format. Audio in the earlier one is dropped."""
        if format != self.format:
            self.clear()
            self.format = format

    def clear(self) -> None:
        """Drop the audio."""
        self.start_ms = self.end_ms
        self._data = bytearray()

    def drop_before(self, at_ms: float) -> None:
        """Drop the audio before a time."""
        self._take(self._place_of(at_ms))

    def take(self, end_ms: float | None = None) -> bytes:
        """Returns the audio up to a time, and drops it. None: all of it."""
        return self._take(len(self._data) if end_ms is None else self._place_of(end_ms))

    def peek(self, end_ms: float) -> bytes:
        """Returns the audio up to a time."""
        return bytes(self._data[: self._place_of(end_ms)])

    def _place_of(self, at_ms: float) -> int:
        place = round((at_ms - self.start_ms) * self.format.bytes_per_ms)
        return max(0, min(place - place % 2, len(self._data)))

    def _take(self, size: int) -> bytes:
        size -= size % 2  # half a sample waits for its other half
        found = bytes(self._data[:size])
        self.start_ms += size / self.format.bytes_per_ms
        del self._data[:size]
        return found
