"""The page at /: plain files of this package, with headers that let it load nothing from anywhere else."""

from __future__ import annotations

from os import PathLike, stat_result
from pathlib import Path
from typing import Final

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER: Final = Path(__file__).parent / "page"

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
    # Asked for again at each visit, and answered with 304: an upgrade never mixes modules of two versions.
    "cache-control": "no-cache",
}
"""Of every file of the page. blob: are pictures and sounds that the user attached, and the answer's speech."""


class PageFiles(StaticFiles):
    """Serves the page."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER, html=True)

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """Returns a file, or 304, with HEADERS."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        return response
