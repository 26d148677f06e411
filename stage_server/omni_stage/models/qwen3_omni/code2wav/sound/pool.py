"""The states of the open streams. Each has one row in shared tensors; rows of closed streams are reused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from omni_stage.errors import ModelExecutionError
from omni_stage.models.qwen3_omni.code2wav.sound.state import StateLayout, States

_FIRST_ROWS = 8
MAX_SOUNDS = 256
"""Maximum number of streams that may be open concurrently. Their states take 1.3 GB in the published model."""


@dataclass(frozen=True, slots=True)
class _Sound:
    row: int
    frames: int


class SoundPool:
    """States of open streams by id. For use by one thread."""

    def __init__(self, layout: StateLayout, device: torch.device, max_sounds: int = MAX_SOUNDS) -> None:
        self._layout = layout
        self._device = device
        self._max_sounds = max_sounds
        self._states = layout.zeros(0, device)
        self._free: list[int] = []
        self._sounds: dict[str, _Sound] = {}

    def __len__(self) -> int:
        return len(self._sounds)

    @property
    def rows(self) -> int:
        """Number of rows allocated so far, in use or free."""
        return self._states.attention.shape[0]

    def check(self, sound: str, first_frame: int) -> None:
        """Check that the stream continues at this frame; a new stream must begin at 0.

        Raises ModelExecutionError if the frame does not follow, or if too many streams are open for a new one.
        """
        known = self._sounds.get(sound)
        frames = 0 if known is None else known.frames
        if first_frame != frames:
            raise ModelExecutionError(
                f"a chunk of codes begins at frame {first_frame}, but its stream has {frames} so far; retry the request"
            )
        if known is None and len(self._sounds) >= self._max_sounds:
            raise ModelExecutionError(f"{self._max_sounds} audio streams are open, and no more fit; add replicas")

    def read(self, sounds: Sequence[str | None]) -> States:
        """Returns a copy of these streams' states, in this order; zeros for None and for unknown ids."""
        states = self._layout.zeros(len(sounds), self._device)
        places = [(at, self._sounds[name].row) for at, name in enumerate(sounds) if name in self._sounds]
        if places:
            at, rows = (torch.tensor(column).to(self._device) for column in zip(*places, strict=True))
            states.put(at, self._states.take(rows))
        return states

    def write(self, sounds: Sequence[str | None], frames: Sequence[int], states: States) -> None:
        """Store the states of the streams that have an id. `frames`: each stream's number of frames so far.

        Raises torch.OutOfMemoryError if the device has no memory for new streams. In this case no state has changed.
        """
        kept = [(at, name) for at, name in enumerate(sounds) if name is not None]
        if not kept:
            return
        new = [name for _, name in kept if name not in self._sounds]
        self._reserve(len(new))
        lent = dict(zip(new, self._free, strict=False))
        rows = [lent[name] if name in lent else self._sounds[name].row for _, name in kept]
        values = states.take(torch.tensor([at for at, _ in kept]).to(self._device))
        self._states.put(torch.tensor(rows).to(self._device), values)
        # Nothing below this line allocates memory on the device.
        del self._free[: len(new)]
        for (at, name), row in zip(kept, rows, strict=True):
            self._sounds[name] = _Sound(row, frames[at])

    def drop(self, sound: str) -> None:
        """Free a stream that has ended or was cancelled. Unknown ids are ignored."""
        known = self._sounds.pop(sound, None)
        if known is not None:
            self._free.append(known.row)

    def _reserve(self, count: int) -> None:
        """Add rows until at least `count` are free."""
        while len(self._free) < count:
            first = self.rows
            more = max(_FIRST_ROWS, first)
            # These tensors are written inside and outside of inference mode, so they must not be inference tensors.
            with torch.inference_mode(False):
                self._states = self._states.grow(more)
            self._free.extend(range(first, first + more))
