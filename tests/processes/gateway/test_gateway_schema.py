"""Requests generated from the OpenAPI document are all answered as it says, with and without keys, and never with a 5xx
status.

The entry stage behind the gateway is a fake that answers immediately, so that thousands of requests can be sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.guard.keys import hash_key
from omni_gateway.settings import GatewaySettings
from support.peers.answering_entry import serve_entry
from support.peers.gateways import serve_gateway
from support.processes.polling import PATIENCE_S

MODEL = "omni"
SCOPES = {"good": "", "slow": ", limits: {requestsPerMinute: 1}", "other": ", models: [nobody]"}
CHECKS = [content_type_conformance, response_headers_conformance, response_schema_conformance, status_code_conformance]


@pytest.fixture(scope="module")
def entry() -> Iterator[ServedPipeline]:
    with serve_entry() as (port, _):
        yield ServedPipeline(MODEL, f"grpc://127.0.0.1:{port}")


@pytest.fixture(scope="module")
def gateway(entry: ServedPipeline) -> Iterator[str]:
    with serve_gateway(entry) as url:
        yield url


@pytest.fixture(scope="module")
def guarded(entry: ServedPipeline, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields the URL of a gateway with keys."""
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys = [f"- {{name: {name}, sha256: {hash_key(name)}{fields}}}" for name, fields in SCOPES.items()]
    file.write_text("keys:\n" + "\n".join(keys))
    with serve_gateway(entry, settings=GatewaySettings(keys_file=file, voices_without_key=True)) as url:
        yield url


def check_cases(url: str, count: int, key: str = "") -> dict[int, int]:
    """Sends at least `count` requests generated from the document, most of them to POST routes.

    A generated model name is replaced by the served one, so that the gateway validates the other fields too. Returns
    how many responses had each status.
    """
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    statuses: dict[int, int] = {}
    for operation in operations:

        @settings(
            max_examples=count * 5 // 8 if operation.method == "post" else max(2, count // 50),
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            if isinstance(case.body, dict) and "model" in case.body:
                case.body = {**case.body, "model": MODEL}
            case.headers = {"authorization": f"Bearer {key}"} if key else {}
            answer = case.call(timeout=PATIENCE_S)
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
            assert answer.status_code < 500, (answer.status_code, answer.text[:500], case.body)
            case.validate_response(answer, checks=CHECKS)
            if answer.status_code >= 400:
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

        check()
    return statuses


def test_no_request_that_the_schema_allows_breaks_it(gateway: str) -> None:
    statuses = check_cases(gateway, 150)
    assert sum(statuses.values()) >= 150
    assert {200, 400} <= set(statuses)


@pytest.mark.parametrize(
    ("key", "expected"),
    [("good", {200, 400}), ("slow", {200, 429}), ("wrong", {200, 401}), ("", {200, 401}), ("other", {200, 400, 404})],
)
def test_answers_of_a_gateway_with_keys_are_as_the_document_says(guarded: str, key: str, expected: set[int]) -> None:
    assert set(check_cases(guarded, 16, key)) >= expected


def test_the_document_says_which_routes_need_a_key(gateway: str, guarded: str) -> None:
    documents = [httpx.get(f"{url}/openapi.json").json() for url in (gateway, guarded)]
    for document in documents:
        assert document["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
        assert "HTTPValidationError" not in str(document)
    security = [
        {path: found["security"] for path, methods in document["paths"].items() for found in methods.values()}
        for document in documents
    ]
    needed: dict[str, list[str]] = {"apiKey": []}
    for path, found in security[1].items():
        is_open = path in ("/v1/audio/voices", "/v1/audio/models")
        is_api = path.startswith("/v1/")
        assert found == ([] if not is_api else [{}, needed] if is_open else [needed]), path
        assert security[0][path] == ([{}, needed] if is_api else []), path


@pytest.mark.full
@pytest.mark.timeout(3600)  # it takes six minutes on two busy cores, mostly to generate the cases
def test_none_of_ten_thousand_requests_breaks_it(gateway: str) -> None:
    assert sum(check_cases(gateway, 10_000).values()) >= 10_000
