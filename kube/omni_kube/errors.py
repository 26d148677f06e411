"""Errors of calls to the API server, with one root class. Each class defines how the call is retried.

This module imports the standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

MAX_MESSAGE_CHARACTERS = 500
"""Length to which an API server's message is cut: it may quote a whole object."""


class KubeError(Exception):
    """Root of every error that this package raises on purpose."""


class CredentialsError(KubeError):
    """The credentials of the API server cannot be read. str() names them and the cause."""


class NotLeaderError(KubeError):
    """A write was about to be sent while another process may hold the lease."""


class RetryClass(StrEnum):
    """When to retry after an error."""

    SOON = "soon"
    """The call is based on an old state, because another client has written: the next read shows the change."""
    LATER = "later"
    """The server is busy, faulty or unreachable, or does not yet have the object or accept the credentials: retry with
    growing pauses."""
    SLOWLY = "slowly"
    """The server refuses the call: a retry succeeds only after someone changes the cluster."""
    NEVER = "never"
    """Do not retry until an event reports a change."""


class ApiError(KubeError):
    """A call to the API server failed."""

    retry: RetryClass = RetryClass.SLOWLY

    def __init__(
        self, message: str, *, status: int = 0, reason: str = "", retry_after_s: float | None = None, call: str = ""
    ) -> None:
        super().__init__(f"{call}: {status or reason} {message}" if call else message)
        self.message = message
        """The server's message, cut to MAX_MESSAGE_CHARACTERS."""
        self.status = status
        """HTTP status; 0 without a response."""
        self.reason = reason
        """Kubernetes' reason, e.g. Invalid; empty if none was given."""
        self.retry_after_s = retry_after_s
        """Pause that the server requests, in seconds."""
        self.call = call
        """URL path of the call, with the verb before it if it is known."""


class InvalidError(ApiError):
    """400, 413, 415, 422: the server rejects the object as invalid."""


class UnauthorizedError(ApiError):
    """401: the credentials are not accepted; they are read again before the next call."""

    retry = RetryClass.LATER


class ForbiddenError(ApiError):
    """403: the caller lacks a role, or the server refuses the call for another reason (see the subclasses)."""


class DeniedError(ForbiddenError):
    """403, 422: a quota of the namespace or an admission policy refuses the object; the caller may write others."""


class BeingTerminatedError(ForbiddenError):
    """403: the namespace and everything in it is being deleted."""

    retry = RetryClass.NEVER


class NotFoundError(ApiError):
    """404: no such object, namespace or API."""

    retry = RetryClass.LATER


class ConflictError(ApiError):
    """409: the object has another version or another uid, or exists already."""

    retry = RetryClass.SOON


class GoneError(ApiError):
    """410: the resource version is too old to continue from."""

    retry = RetryClass.SOON


class TooManyRequestsError(ApiError):
    """429: the server requests a pause."""

    retry = RetryClass.LATER


class ServerError(ApiError):
    """5xx: the server failed."""

    retry = RetryClass.LATER


class UnreachableError(ServerError):
    """No response: the connection was refused or lost, or timed out. A write may have taken effect."""


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
    """Returns the error for a response of the API server.

    body is a Status object, as text or decoded; any other text is used as the message. retry_after is the value of
    the Retry-After header.
    """
    document = _parse_status(body) if isinstance(body, bytes) else dict(body)
    message = str(document.get("message") or "no message")[:MAX_MESSAGE_CHARACTERS]
    if status == 404 and message.strip() == "404 page not found":
        message = "the API server knows no such kind: apply its CRD"
    details = document.get("details")
    details = details if isinstance(details, dict) else {}
    kind = _CLASSES.get(status) or (ServerError if status >= 500 else ApiError)
    if kind is ForbiddenError and _is_terminating(details, message):
        kind = BeingTerminatedError
    elif kind in (ForbiddenError, InvalidError) and _DENIED.search(message):
        kind = DeniedError
    if status == 500 and "failed to create typed patch object" in message:
        kind = InvalidError  # server-side apply answers 500 to an unknown field
    pause = _parse_seconds(retry_after) if retry_after else _parse_seconds(details.get("retryAfterSeconds"))
    return kind(message, status=status, reason=str(document.get("reason") or ""), retry_after_s=pause, call=call)


_DENIED = re.compile(
    r"exceeded quota: |failed quota: |insufficient quota|admission webhook \".*\" denied the request"
    r"|ValidatingAdmissionPolicy '.*' with binding '.*' denied request"
)
"""Matches refusals by a ResourceQuota, an admission webhook or a policy. A refusal for a missing role is worded
differently."""


def _parse_status(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        # A proxy in between may respond with its own text.
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
