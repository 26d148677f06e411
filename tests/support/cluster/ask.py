"""Sends requests to a pipeline from a pod or from this machine. Needs only our client and the standard library.

Reads {"target", "requests": [{"text", "image", "audio", "video", "seed"}]} as JSON from stdin. Media are in base64.
All but the seed may be missing. Writes a JSON list of answers to stdout. The model also hears the videos' audio
(use_audio_in_video).
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

from omni_proto.client import ChatMessage, GenerationResult, OmniClient, audio_part, image_part, video_part

TIMEOUT_S = 120.0


def main() -> None:
    """Sends the requests one after the other."""
    asked = json.load(sys.stdin)
    with OmniClient(asked["target"]) as client:
        answers = [describe(answer(client, request)) for request in asked["requests"]]
    json.dump(answers, sys.stdout)


def answer(client: OmniClient, request: dict[str, Any]) -> GenerationResult:
    """Returns the pipeline's answer to one request."""
    parts: list[Any] = []
    if "image" in request:
        parts.append(image_part(base64.b64decode(request["image"])))
    if "audio" in request:
        parts.append(audio_part(base64.b64decode(request["audio"])))
    if "video" in request:
        parts.append(video_part(base64.b64decode(request["video"])))
    if "text" in request:
        parts.append(request["text"])
    return client.run(
        chat=[ChatMessage("user", tuple(parts))],
        use_audio_in_video="video" in request,
        seed=request["seed"],
        include_token_ids=True,
        include_codec_tokens=True,
        encoding="pcm_f32le",
        timeout=TIMEOUT_S,
    )


def describe(result: GenerationResult) -> dict[str, Any]:
    """Returns an answer as a mapping that JSON can hold."""
    return {
        "texts": dict(result.texts),
        "transcript": result.transcript,
        "token_ids": {stage: list(ids) for stage, ids in result.token_ids.items()},
        "audio": base64.b64encode(result.audio).decode(),
        "sample_rate_hz": result.sample_rate_hz,
        "finished": sorted(result.finished),
    }


if __name__ == "__main__":
    main()
