"""`python recorded_server.py FOLDER serve ...`: a stage server that records which source files a request enters.

The recording begins with the first call of Generate and ends when that call is counted. The names of the files,
below the package's root, are then written to FOLDER/STAGE.json.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

FIRST = ("intercept_service", "side_calls.py")
"""The first function of ours that gRPC calls for a request."""
LAST = ("_count", "interceptor.py")
"""The function that counts and logs a request that has ended."""
PERIODIC = "service/server/watchdog.py"
"""Runs once a second, whether there is a request or not."""


class Recorder:
    """The files of our packages whose functions are called. An instance is a profile function of `sys`."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.is_recording = self.is_done = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event != "call" or self.is_done or "omni_" not in path:
            return
        called = (frame.f_code.co_name, Path(path).name)
        if called == FIRST and frame.f_locals["handler_call_details"].method.endswith("/Generate"):
            self.is_recording = True
        if self.is_recording and called == LAST:
            self.is_done = True
        elif self.is_recording:
            self.files.add(path)

    def write(self, path: Path) -> None:
        names = sorted(file[file.index("omni_") :] for file in self.files)
        path.write_text(json.dumps([name for name in names if not name.endswith(PERIODIC)]))


if __name__ == "__main__":
    recorder = Recorder()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    from omni_stage.__main__ import main

    folder, *arguments = sys.argv[1:]
    status = main(arguments)
    sys.setprofile(None)
    recorder.write(Path(folder) / f"{Path(arguments[arguments.index('--config') + 1]).stem}.json")
    sys.exit(status)
