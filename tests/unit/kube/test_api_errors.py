"""Error responses of the API server: their error class, retry class and pause."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omni_kube.errors import (
    MAX_MESSAGE_CHARACTERS,
    ApiError,
    BeingTerminatedError,
    ConflictError,
    DeniedError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    RetryClass,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
    api_error,
)
from support.tables import each_row

TERMINATING = {
    "message": 'deployments.apps "x" is forbidden: unable to create new content in namespace n because it is being '
    "terminated",
    "reason": "Forbidden",
    "details": {"causes": [{"reason": "NamespaceTerminating", "message": "namespace n is being terminated"}]},
}
CASES: dict[str, tuple[int, dict[str, Any], type[ApiError], RetryClass]] = {
    "bad request": (400, {"reason": "BadRequest"}, InvalidError, RetryClass.SLOWLY),
    "credentials": (401, {"reason": "Unauthorized"}, UnauthorizedError, RetryClass.LATER),
    "role": (403, {"reason": "Forbidden", "message": "cannot patch"}, ForbiddenError, RetryClass.SLOWLY),
    "quota": (403, {"reason": "Forbidden", "message": "exceeded quota: q"}, DeniedError, RetryClass.SLOWLY),
    "quota that needs requests": (
        403,
        {"message": 'pods "x" is forbidden: failed quota: q: must specify limits.cpu for: stage'},
        DeniedError,
        RetryClass.SLOWLY,
    ),
    "webhook": (
        400,
        {"message": 'admission webhook "validate.kyverno.svc-fail" denied the request: no label team'},
        DeniedError,
        RetryClass.SLOWLY,
    ),
    "policy": (
        422,
        {
            "reason": "Invalid",
            "message": "deployments.apps \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied "
            "request: no label team",
        },
        DeniedError,
        RetryClass.SLOWLY,
    ),
    "role, by the API server's words": (
        403,
        {"message": 'services "x" is forbidden: User "u" cannot patch resource "services" in API group ""'},
        ForbiddenError,
        RetryClass.SLOWLY,
    ),
    "namespace goes": (403, TERMINATING, BeingTerminatedError, RetryClass.NEVER),
    "namespace goes, message only": (
        403,
        {"message": "... because it is being terminated"},
        BeingTerminatedError,
        RetryClass.NEVER,
    ),
    "nothing there": (404, {"reason": "NotFound"}, NotFoundError, RetryClass.LATER),
    "conflict": (409, {"reason": "Conflict"}, ConflictError, RetryClass.SOON),
    "too old": (410, {"reason": "Expired"}, GoneError, RetryClass.SOON),
    "too large": (413, {}, InvalidError, RetryClass.SLOWLY),
    "invalid": (422, {"reason": "Invalid"}, InvalidError, RetryClass.SLOWLY),
    "busy": (429, {"reason": "TooManyRequests"}, TooManyRequestsError, RetryClass.LATER),
    "fault": (500, {"reason": "InternalError"}, ServerError, RetryClass.LATER),
    "apply of an unknown field": (
        500,
        {"message": "failed to create typed patch object (n/x; /v1, Kind=ConfigMap): .daata: field not declared"},
        InvalidError,
        RetryClass.SLOWLY,
    ),
    "away": (503, {}, ServerError, RetryClass.LATER),
    "teapot": (418, {}, ApiError, RetryClass.SLOWLY),
}


@each_row("status, document, kind, retry", CASES.values(), ids=CASES)
def test_class_and_retry_class_of_an_answer(
    status: int, document: dict[str, Any], kind: type[ApiError], retry: RetryClass
) -> None:
    error = api_error(status, json.dumps(document).encode(), call="patch /x")
    assert type(error) is kind
    assert (error.status, error.retry, error.reason) == (status, retry, document.get("reason", ""))
    assert str(error).startswith(f"patch /x: {status} ")


@pytest.mark.parametrize(
    ("header", "details", "pause"),
    [
        ("7", {}, 7.0),
        (None, {"retryAfterSeconds": 3}, 3.0),
        ("7", {"retryAfterSeconds": 3}, 7.0),
        (None, {}, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {}, None),
        ("-1", {}, None),
        ("inf", {}, None),
        ("nan", {}, None),
    ],
    ids=repr,
)
def test_the_pause_that_the_server_asks_for(header: str | None, details: dict[str, Any], pause: float | None) -> None:
    assert api_error(429, {"details": details}, header).retry_after_s == pause


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>bad gateway</html>", "<html>bad gateway</html>"),
        (b"\xff", "�"),
        (b"[]", "no message"),
        (b"", ""),
        (b'{"message": null, "details": null}', "no message"),
        (json.dumps({"message": "x" * 10_000}).encode(), "x" * MAX_MESSAGE_CHARACTERS),
    ],
    ids=["html", "not UTF-8", "a list", "nothing", "nulls", "long"],
)
def test_bodies_that_are_no_status(body: bytes, message: str) -> None:
    assert api_error(502, body).message == (message or "no message")


def test_a_kind_whose_crd_was_deleted_is_named() -> None:
    assert "apply its CRD" in api_error(404, b"404 page not found\n").message
