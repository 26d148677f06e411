"""Errors of calls to the API server: one root; every answer of the API server owns how it is retried.

A leaf: imports the standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

MAX_MESSAGE_CHARACTERS = 500
"""Most characters of an API server's message that are kept: it may quote a whole object."""


class KubeError(Exception):
    """Root of every error that this package raises on purpose."""


class CredentialsError(KubeError):
    """The credentials of the API server cannot be read. str() says which and why."""


class NotLeaderError(KubeError):
    """A write was about to be sent while another process may hold the lease."""


class RetryClass(StrEnum):
    """When it makes sense to try again."""

    SOON = "soon"
    """Something else wrote in between: the next reconcile shows it."""
    LATER = "later"
    """The server is busy, faulty or away: with growing pauses."""
    SLOWLY = "slowly"
    """The server refuses: tried again with long pauses, for someone may change the cluster."""
    NEVER = "never"
    """There is nothing to do until an event says otherwise."""


class ApiError(KubeError):
    """A call to the API server failed."""

    retry: RetryClass = RetryClass.SLOWLY

    def __init__(
        self, message: str, *, status: int = 0, reason: str = "", retry_after_s: float | None = None, call: str = ""
    ) -> None:
        super().__init__(f"{call}: {status or reason} {message}" if call else message)
        self.message = message
        """What the server said, cut to MAX_MESSAGE_CHARACTERS."""
        self.status = status
        """HTTP status; 0 if no answer came."""
        self.reason = reason
        """Kubernetes' reason, e.g. Invalid; empty if none was given."""
        self.retry_after_s = retry_after_s
        """Pause that the server asks for, in seconds."""
        self.call = call
        """Verb, kind and name of the object."""


class InvalidError(ApiError):
    """400, 413, 415, 422: the object is refused as it is."""


class UnauthorizedError(ApiError):
    """401: the credentials are not accepted; they are read again before the next call."""

    retry = RetryClass.LATER


class ForbiddenError(ApiError):
    """403: a role, a quota or an admission rule forbids it."""


class BeingTerminatedError(ForbiddenError):
    """403: the namespace is going away, and all of this with it."""

    retry = RetryClass.NEVER


class NotFoundError(ApiError):
    """404: no such object, namespace or API."""

    retry = RetryClass.LATER


class ConflictError(ApiError):
    """409: another version, another uid, or it exists already."""

    retry = RetryClass.SOON


class GoneError(ApiError):
    """410: the resource version is too old to continue from."""

    retry = RetryClass.SOON


class TooManyRequestsError(ApiError):
    """429: the server asks for a pause."""

    retry = RetryClass.LATER


class ServerError(ApiError):
    """5xx: a fault of the server."""

    retry = RetryClass.LATER


class UnreachableError(ServerError):
    """No answer: refused, cut or too slow. A write may have been carried out."""


_CLASSES: dict[int, type[ApiError]] = {
    400: InvalidError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    413: InvalidError,
    415: InvalidError,
    422: InvalidError,
    429: TooManyRequestsError,
}


def api_error(status: int, body: bytes | Mapping[str, Any], retry_after: str | None = None, call: str = "") -> ApiError:
    """Returns the error for an answer of the API server.

    body is a Status object, as text or decoded; anything else is taken as a message. retry_after is a header's value.
    """
    document = _parse_status(body) if isinstance(body, bytes) else dict(body)
    message = str(document.get("message") or "no message")[:MAX_MESSAGE_CHARACTERS]
    details = document.get("details")
    details = details if isinstance(details, dict) else {}
    kind = _CLASSES.get(status) or (ServerError if status >= 500 else ApiError)
    if kind is ForbiddenError and _is_terminating(details, message):
        kind = BeingTerminatedError
    if status == 500 and "failed to create typed patch object" in message:
        kind = InvalidError  # so server-side apply answers to a field that it does not know
    pause = _parse_seconds(retry_after) if retry_after else _parse_seconds(details.get("retryAfterSeconds"))
    return kind(message, status=status, reason=str(document.get("reason") or ""), retry_after_s=pause, call=call)


def _parse_status(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        # A proxy in between answers with text of its own.
        return {"message": body[:MAX_MESSAGE_CHARACTERS].decode("utf-8", "replace")}
    return document if isinstance(document, dict) else {}


def _is_terminating(details: Mapping[str, Any], message: str) -> bool:
    causes = details.get("causes")
    reasons = [cause.get("reason") for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []
    return "NamespaceTerminating" in reasons or "because it is being terminated" in message


def _parse_seconds(value: object) -> float | None:
    try:
        seconds = float(str(value))
    except ValueError:
        return None
    return seconds if 0 < seconds < float("inf") else None
