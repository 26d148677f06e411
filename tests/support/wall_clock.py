"""Programs whose wall clock a test sets while they run: wall_clock.c, compiled and preloaded."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path


class WallClock:
    """The wall clock of the programs that get its environment. Needs a C compiler (`cc`), as vLLM on a CPU does."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "offset"
        library = folder / "wall_clock.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self.environment = {"LD_PRELOAD": str(library), "TEST_CLOCK_OFFSET": str(self._file)}
        self._file.write_bytes(bytes(8))

    def set(self, offset_s: int) -> None:
        """Seconds ahead of the true time, from now on."""
        # In place: programs have the file mapped.
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", offset_s))
