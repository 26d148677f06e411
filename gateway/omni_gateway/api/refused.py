"""Refuses OpenAI's APIs that this gateway does not have, with the reason and an alternative."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request

from omni_gateway.errors import NotImplementedHereError

router = APIRouter(include_in_schema=False)

REFUSED: Final = {
    "/v1/responses": "that API needs stored answers, and this gateway stores none; use /v1/chat/completions",
    "/v1/completions": "the gateway accepts only conversations, for the chat template; use /v1/chat/completions",
    "/v1/audio/transcriptions": (
        "no served model is a transcriber; send input_audio to /v1/chat/completions and ask for its words"
    ),
    "/v1/audio/translations": (
        "no served model is a transcriber; send input_audio to /v1/chat/completions and ask for a translation"
    ),
    "/v1/embeddings": "pipelines return text and audio, not embeddings",
    "/v1/images/generations": "pipelines return text and audio, not images",
    "/v1/realtime": "there is no Realtime API yet; use /v1/chat/completions with stream: true",
}
"""Reason by path."""


async def refuse(request: Request) -> None:
    """Raises NotImplementedHereError with the reason for the request's path."""
    path = request.url.path
    raise NotImplementedHereError(f"{path} is not supported: {REFUSED[path]}.")


for _path in REFUSED:
    router.add_api_route(_path, refuse, methods=["GET", "POST"], response_model=None)
