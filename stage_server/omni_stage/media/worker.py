"""A process that decodes media, one request's at a time, and may be killed whenever it takes too long.

`python -m omni_stage.media.worker FD`: a socket on which jobs come as packets of JSON, each with the file descriptor of
shared memory that holds the encoded bytes and has room for what they become. Answers are packets of JSON, so that a
decoder that was taken over can send its parent nothing but numbers and a text. Ends when its parent does.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import socket
import sys
from typing import Any, Final

import numpy as np

from omni_stage.media.decode import UndecodableError, decode_audio, decode_image

PACKET_BYTES: Final = 128 << 10
READY: Final = b"ready"
_NICE: Final = 10
"""Engines come first where cores are short."""
_PAGE: Final = resource.getpagesize()


def main(descriptor: int) -> None:
    """Serve jobs until the parent closes its end."""
    _confine()
    with socket.socket(fileno=descriptor) as parent:
        parent.send(READY)
        while True:
            message, descriptors, _, _ = socket.recv_fds(parent, PACKET_BYTES, 1)
            if not message:
                return
            try:
                answer = run_job(json.loads(message), descriptors[0])
            finally:
                for received in descriptors:
                    os.close(received)
            parent.send(json.dumps(answer).encode())


def run_job(job: dict[str, Any], descriptor: int) -> dict[str, Any]:
    """Decode a request's media. {"samples": [of each medium]}, or {"error": text, "medium": its number}."""
    base = _address_space() + int(job["shared_bytes"])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (base + int(job["work_bytes"]), hard))
    # A second clock beside the parent's: its default action ends a decoder that is deep in C.
    signal.setitimer(signal.ITIMER_REAL, float(job["seconds"]))
    samples: list[int] = []
    try:
        with mmap.mmap(descriptor, int(job["shared_bytes"])) as shared:
            for medium in job["media"]:
                samples.append(_decode(shared, medium))
    except UndecodableError as error:
        return {"error": str(error), "medium": len(samples)}
    except MemoryError:
        return {"error": "it needs more memory to decode than its header announced", "medium": len(samples)}
    except Exception:  # noqa: BLE001 - whatever a decoder makes of hostile bytes is the fault of the bytes
        return {"error": "it cannot be decoded", "medium": len(samples)}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    return {"samples": samples}


def _decode(shared: mmap.mmap, medium: dict[str, Any]) -> int:
    begin, size = medium["offset"], medium["size"]
    data = shared[begin : begin + size]
    if "width" in medium:
        shape = (medium["height"], medium["width"], 3)
        pixels = np.ndarray(shape, np.uint8, shared, medium["out"])
        decode_image(data, medium["kind"], pixels)
        return 0
    out = np.ndarray((medium["max_samples"],), np.float32, shared, medium["out"])
    return decode_audio(data, medium["max_frames"], medium["rate_hz"], medium["channels"], medium["to_hz"], out)


def _confine() -> None:
    """Give up what decoding does not need."""
    os.nice(_NICE)
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(kind, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    # What decoders print may hold the caller's bytes.
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    os.close(silent)
    # The parent decides when to stop; signals to the whole group are for it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * _PAGE


if __name__ == "__main__":
    main(int(sys.argv[1]))
