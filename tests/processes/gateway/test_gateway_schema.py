"""Requests generated from the OpenAPI schema are all answered, and never with a 5xx status.

The entry stage behind the gateway is a fake that answers immediately, so that thousands of requests can be sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from omni_gateway.entries.pipelines import ServedPipeline
from support.peers.answering_entry import serve_entry
from support.peers.gateways import serve_gateway

MODEL = "omni"


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    with serve_entry() as (port, _), serve_gateway(ServedPipeline(MODEL, f"grpc://127.0.0.1:{port}")) as url:
        yield url


def check_cases(url: str, count: int) -> dict[int, int]:
    """Sends at least `count` requests generated from the schema, most of them to POST routes.

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
            answer = case.call(timeout=60)
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
            assert answer.status_code < 500, (answer.status_code, answer.text[:500], case.body)
            if answer.status_code >= 400:
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

        check()
    return statuses


def test_no_request_that_the_schema_allows_breaks_it(gateway: str) -> None:
    statuses = check_cases(gateway, 150)
    assert sum(statuses.values()) >= 150
    assert {200, 400} <= set(statuses)


@pytest.mark.full
@pytest.mark.timeout(3600)  # it takes six minutes on two busy cores, mostly to generate the cases
def test_none_of_ten_thousand_requests_breaks_it(gateway: str) -> None:
    assert sum(check_cases(gateway, 10_000).values()) >= 10_000
