"""Errors of the gateway, with one root class. Each class defines its HTTP status, type and code.

`to_error` maps the errors of the gRPC client to them. The body has OpenAI's shape: {"error": {"message", "type",
"param", "code"}}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final

from omni_gateway.client_paths import NO_PATHS, ClientPaths
from omni_proto.client import ArgumentError, OmniRequestError

INVALID: Final = "invalid_request_error"
SERVER: Final = "server_error"


class GatewayError(Exception):
    """Root of every error that the gateway answers with."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = SERVER
    code: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        """Name of the wrong field, in OpenAI's spelling."""
        self.specific_code = code
        """A code that is more specific than the code of the class."""
        self.retry_after_s = retry_after_s
        self.headers = headers or {}
        """Further headers of the answer."""


class InvalidRequestError(GatewayError):
    """A field of the request is missing, wrong or too large."""

    status = 400
    type = INVALID
    code = "invalid_value"


class MalformedRequestError(InvalidRequestError):
    """The bytes on a connection are not a request of HTTP/1.1."""

    code = "malformed_request"


class UnsupportedError(InvalidRequestError):
    """A field or value of OpenAI's API that this gateway does not support."""

    code = "unsupported_parameter"


class InvalidMediaError(InvalidRequestError):
    """An image, audio or video that cannot be read, or may not be fetched."""

    code = "invalid_media"


class AuthenticationError(GatewayError):
    """No key, or an unknown one."""

    status = 401
    type = INVALID
    code = "invalid_api_key"


class OriginError(GatewayError):
    """A page of another origin opens a session, and the gateway does not allow it."""

    status = 403
    type = INVALID
    code = "origin_not_allowed"


class UpgradeRequiredError(GatewayError):
    """A request to the route of a WebSocket that offers none, or a wrong handshake."""

    status = 426
    type = INVALID
    code = "upgrade_required"


class ModelNotFoundError(GatewayError):
    """No pipeline has the name."""

    status = 404
    type = INVALID
    code = "model_not_found"

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model")


class RouteNotFoundError(GatewayError):
    """No route has the path."""

    status = 404
    type = INVALID
    code = "not_found"


class MethodNotAllowedError(GatewayError):
    """The route does not allow the method."""

    status = 405
    type = INVALID
    code = "method_not_allowed"


class TooLargeError(GatewayError):
    """The body, or a file in it, is larger than allowed."""

    status = 413
    type = INVALID
    code = "request_too_large"


class EncodingError(GatewayError):
    """The body is compressed, or has another content-encoding."""

    status = 415
    type = INVALID
    code = "unsupported_encoding"

    def __init__(self, encoding: str) -> None:
        super().__init__(
            f"The body has the content-encoding {encoding[:64]!r}, and only 'identity' is read: send it uncompressed, "
            "without this header.",
            headers={"accept-encoding": "identity"},
        )


class HeaderTooLargeError(GatewayError):
    """The header of a request is larger than allowed."""

    status = 431
    type = INVALID
    code = "header_too_large"


class RateLimitError(GatewayError):
    """The key's limit or the pipeline's capacity is exhausted."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class InternalError(GatewayError):
    """The gateway or a stage failed."""

    code = "internal_error"


class SpeechCutError(GatewayError):
    """Speech that a stage ended at its maximum length. The client sees a broken transfer."""

    code = "speech_cut"


class TranscriptCutError(InvalidRequestError):
    """A transcript that a stage ended at its maximum length, so that words are missing."""

    code = "transcript_cut"


class NotImplementedHereError(GatewayError):
    """An API of OpenAI's that this gateway does not have."""

    status = 404
    type = INVALID
    code = "unsupported_endpoint"


class ModelNotReadyError(GatewayError):
    """The pipeline exists but accepts no requests now."""

    status = 503
    code = "model_not_ready"


class UnavailableError(GatewayError):
    """A stage is unreachable or draining, or the gateway is full."""

    status = 503
    code = "service_unavailable"


class StageTimeoutError(GatewayError):
    """A deadline passed."""

    status = 504
    code = "timeout"


class ClientDisconnectedError(Exception):
    """The client closed its connection, or read nothing of the answer for too long. No more can be sent."""


_BY_CODE: Final[Mapping[str, type[GatewayError]]] = {
    "INVALID_ARGUMENT": InvalidRequestError,
    "OUT_OF_RANGE": InvalidRequestError,
    "RESOURCE_EXHAUSTED": RateLimitError,
    "UNAVAILABLE": UnavailableError,
    "CANCELLED": UnavailableError,
    "DEADLINE_EXCEEDED": StageTimeoutError,
}
_BY_REASON: Final[Mapping[str, tuple[type[GatewayError], str]]] = {
    "PROMPT_TOO_LONG": (InvalidRequestError, "context_length_exceeded"),
    "INVALID_MEDIA": (InvalidMediaError, "invalid_media"),
    "REQUEST_TOO_LARGE": (TooLargeError, "request_too_large"),
}


def to_error(
    error: OmniRequestError | ArgumentError,
    paths: ClientPaths = NO_PATHS,
    max_model_lens: Mapping[str, int] = MappingProxyType({}),
    pipeline: str = "",
) -> GatewayError:
    """Returns the gateway's error for a failed call.

    paths: the client's names of the request's fields. max_model_lens: the longest sequences of stages in tokens, by the
    stage's name, as far as they are known. pipeline: name of the pipeline, for errors that are not the client's.
    """
    if isinstance(error, ArgumentError):
        wrong = paths.translate(error.field) if error.field else None
        return InvalidRequestError(paths.translate_text(str(error)), param=wrong)
    kind, code = _BY_REASON.get(error.reason, (_BY_CODE.get(error.code.name, InternalError), None))
    places = [f"stage {error.stage}"] if error.stage else []
    if pipeline and kind.status >= 500:
        places.append(f"pipeline {pipeline}")
    where = f" ({' of '.join(places)})" if places else ""
    said = paths.translate_text(error.message or error.code.name)
    param = paths.translate(error.field) if error.field else None
    if error.reason == "PROMPT_TOO_LONG":
        param = paths.prompt
        known = max_model_lens.get(error.stage)
        limit = f"{known} tokens" if known else error.limit
        said = _too_long(limit, error.actual or f"more than {error.limit or limit}", paths.prompt, said)
    return kind(f"{said}{where}", param=param, code=code, retry_after_s=error.retry_after_s)


def _too_long(limit: str, actual: str, prompt: str, said: str) -> str:
    """Returns OpenAI's sentence about a prompt that is too long, which many clients look for in the text of an error.
    They then shorten the conversation, or ask another model (LiteLLM's context_window_fallbacks)."""
    return (
        f"This model's maximum context length is {limit or 'exceeded'}. However, your {prompt} resulted in "
        f"{actual}. Please reduce the length of the {prompt}. ({said})"
    )


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """Status, headers and body of a failed request."""

    status: int
    headers: Mapping[str, str]
    body: Mapping[str, Any]


def answer_error(error: GatewayError) -> ErrorAnswer:
    """Returns the answer that the client gets. Retry-After is rounded up to whole seconds, at least 1."""
    headers = dict(error.headers)
    if error.retry_after_s is not None or isinstance(error, RateLimitError):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s or 1)))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    body = {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.specific_code or error.code,
        }
    }
    return ErrorAnswer(error.status, headers, body)
