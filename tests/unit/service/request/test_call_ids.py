"""The ids of a call, in metadata and in the logs."""

from __future__ import annotations

import json
import logging

from omni_stage.process.stage_log import request_id_var, stage_formatter
from omni_stage.service.request.tracing import forwarded_metadata, request_id_of, traceparent_of


def test_logs_hold_ids_and_no_exception_text() -> None:
    token = request_id_var.set("r7")
    try:
        raise ValueError("secret prompt")
    except ValueError as error:
        record = logging.LogRecord(
            "n", logging.ERROR, "f", 1, "it failed", (), (ValueError, error, error.__traceback__)
        )
    record.size = 3
    line = json.loads(stage_formatter("thinker", "json").format(record))
    text = stage_formatter("thinker", "text").format(record)
    request_id_var.reset(token)
    assert (line["stage"], line["request_id"], line["size"]) == ("thinker", "r7", 3)
    assert "ValueError at" in line["error"]
    assert "secret" not in json.dumps(line) + text
    assert "thinker r7 n: it failed" in text


def test_request_ids_that_are_not_safe_are_replaced() -> None:
    assert request_id_of([("x-request-id", "abc-1")]) == "abc-1"
    assert len(request_id_of([("x-request-id", "a\nb")])) == 32
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    assert traceparent_of([("traceparent", trace)]) == trace
    assert traceparent_of([("traceparent", "nonsense")]) == traceparent_of(None) == ""
    assert forwarded_metadata("r", trace) == (("x-request-id", "r"), ("traceparent", trace))
    assert forwarded_metadata("r", "") == (("x-request-id", "r"),)
