"""Lets a test set the wall clock of programs while they run. Compiles wall_clock.c, which the programs preload."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path


class WallClock:
    """The wall clock of programs that run with `environment`. Needs a C compiler (`cc`), as vLLM on a CPU does."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "offset"
        library = folder / "wall_clock.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self.environment = {"LD_PRELOAD": str(library), "TEST_CLOCK_OFFSET": str(self._file)}
        self._file.write_bytes(bytes(8))

    def set(self, offset_s: int) -> None:
        """Sets the clock to `offset_s` seconds ahead of the true time."""
        # Written in place, because programs have the file mapped.
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", offset_s))
