"""A process that decodes the media of one request at a time. Its parent may kill it if it takes too long.

`python -m omni_stage.decoding.worker FD`: FD is the file descriptor of a socket. Each job arrives on it as a JSON
packet, with the descriptor of shared memory. That memory holds the encoded bytes and has space for the decoded ones.
Responses are JSON packets too, so a compromised decoder can send its parent only numbers and text. The process ends
when its parent does.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import socket
import sys
from typing import Any

import numpy as np

from omni_proto.runtime.process import PACKET_BYTES, READY, confine, discard_output, used_address_space
from omni_stage.decoding.decode import UndecodableError, decode_image


def main(descriptor: int) -> None:
    """Serve jobs until the parent closes its end of the socket."""
    confine()
    discard_output()
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
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
    """Decode a request's media. Returns {"sizes": [[frames, samples], ...], "damage": [share, ...]}, or
    {"error": text, "medium": index}.

    An image's size is [width, height]. The share, 0 to 1, is how much was skipped because it is damaged.
    """
    if any("to_hz" in medium for medium in job["media"]):
        # Load FFmpeg only if there is audio or video, and before memory is limited.
        import omni_stage.decoding.video  # noqa: F401
    base = used_address_space() + int(job["shared_bytes"])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (base + int(job["work_bytes"]), hard))
    # The parent also has a time limit. Here the default action of SIGALRM ends a decoder even inside C code.
    signal.setitimer(signal.ITIMER_REAL, float(job["seconds"]))
    sizes: list[tuple[int, int]] = []
    damage: list[float] = []
    try:
        with mmap.mmap(descriptor, int(job["shared_bytes"])) as shared:
            for medium in job["media"]:
                size, share = _decode(shared, medium)
                sizes.append(size)
                damage.append(share)
    except UndecodableError as error:
        return {"error": str(error), "medium": len(sizes)}
    except MemoryError:
        return {"error": "decoding it needs more memory than its header announced", "medium": len(sizes)}
    except Exception:  # noqa: BLE001 - hostile bytes can make a decoder raise anything
        return {"error": "it cannot be decoded", "medium": len(sizes)}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    return {"sizes": sizes, "damage": damage}


def _decode(shared: mmap.mmap, medium: dict[str, Any]) -> tuple[tuple[int, int], float]:
    """Decode one medium into shared memory. Returns its frames and samples, or an image's width and height; and the
    share that is damaged."""
    begin, size = medium["offset"], medium["size"]
    data = shared[begin : begin + size]
    if "seconds" in medium:
        return _decode_video(shared, medium, data)
    if "width" in medium:
        pixels = np.ndarray((medium["height"], medium["width"], 3), np.uint8, shared, medium["out"])
        shown = decode_image(data, medium["kind"], pixels)
        return (shown.shape[1], shown.shape[0]), 0.0
    from omni_stage.decoding.audio import decode_audio

    out = np.ndarray((medium["max_samples"],), np.float32, shared, medium["out"])
    count, share = decode_audio(data, medium["kind"], _audio_rules(medium), out)
    return (0, count), share


def _decode_video(shared: mmap.mmap, medium: dict[str, Any], data: bytes) -> tuple[tuple[int, int], float]:
    from omni_stage.decoding.video import decode_audio_track, decode_video

    shape = (medium["frames"], medium["height"], medium["width"], 3)
    frames = np.ndarray(shape, np.uint8, shared, medium["out"])
    # A view of the same memory with rows and columns as they are encoded, which rotation may exchange.
    lying = np.rot90(frames, medium["quarter_turns"], axes=(1, 2))
    count, share = decode_video(
        data, medium["kind"], seconds=medium["seconds"], max_frames=medium["max_frames"], out=lying
    )
    if not medium["max_samples"]:
        return (count, 0), share
    track = np.ndarray((medium["max_samples"],), np.float32, shared, medium["audio_out"])
    samples, lost = decode_audio_track(data, medium["kind"], _audio_rules(medium), track)
    return (count, samples), max(share, lost)


def _audio_rules(medium: dict[str, Any]) -> Any:
    from omni_stage.decoding.audio import AudioRules

    return AudioRules(medium["to_hz"], medium["stated_s"], medium["max_rate_hz"], medium["max_channels"])


if __name__ == "__main__":
    main(int(sys.argv[1]))
