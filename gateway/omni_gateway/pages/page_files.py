"""Serves the page at /: static files of this package, with headers that forbid loading anything from other hosts."""

from __future__ import annotations

from os import PathLike, stat_result
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER: Final = Path(__file__).parent / "static"

HEADERS: Final = {
    "content-security-policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' blob:",
            "media-src blob:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # The browser revalidates each file at each visit (304 if unchanged), so an upgrade never mixes two versions.
    "cache-control": "no-cache",
}
"""Headers of every file of the page. blob: URLs are media that the user attached, and the speech of answers."""


class PageFiles(StaticFiles):
    """Serves the page, and answers all requests that no route takes."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER, html=True)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Returns the response with a file. Raises HTTPException with status 404 if there is none, or if the method is
        neither GET nor HEAD."""
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(404)
        return await super().get_response(path, scope)

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """Returns the response with a file, or with status 304, and adds HEADERS."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        return response
