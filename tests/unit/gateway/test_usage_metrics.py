"""What a gateway counts for each model and key, and the date of its certificate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from omni_gateway import telemetry
from omni_gateway.api.answer import tokens_of
from omni_gateway.context import Budget, Call, Share
from omni_gateway.guard.record import describe_generation
from omni_gateway.http_server.server import ServerCertificate
from omni_gateway.telemetry import GatewayMetrics
from omni_proto.client import StageOutcome, Summary, Usage
from support.peers.certificates import DAY, Authority, MountedSecret, tls_files


def counted(metrics: GatewayMetrics, name: str) -> dict[tuple[str, ...], float]:
    families = [family for family in metrics.registry.collect() if family.name == name]
    samples = [sample for family in families for sample in family.samples if sample.name == f"{name}_total"]
    return {tuple(sample.labels.values()): sample.value for sample in samples}


def test_each_key_has_its_own_series() -> None:
    metrics = GatewayMetrics()
    for key, seconds in (("alice", 2.0), ("bob", 0.5), ("alice", 1.0)):
        metrics.count_audio("omni", key, seconds)
    metrics.count_model_request("omni", "alice", 429)
    metrics.count_tokens("omni", "alice", {"prompt": 9, "text": 3, "codec": 50})
    assert counted(metrics, "omni_gateway_audio_seconds") == {("omni", "alice"): 3.0, ("omni", "bob"): 0.5}
    assert counted(metrics, "omni_gateway_model_requests") == {("omni", "alice", "429"): 1.0}
    assert counted(metrics, "omni_gateway_tokens")["omni", "alice", "codec"] == 50.0


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "MOST_USERS", 2)
    metrics = GatewayMetrics()
    for key in ("a", "b", "c", "d", "a"):
        metrics.count_audio("omni", key, 1.0)
    assert counted(metrics, "omni_gateway_audio_seconds") == {
        ("omni", "a"): 2.0,
        ("omni", "b"): 1.0,
        ("other", "other"): 2.0,
    }


def test_tokens_of_an_answer() -> None:
    """The prompt is the entry stage's; a stage below reads the same prompt again, as rows, and is not billed for it."""
    stages = tuple(
        StageOutcome(stage, "stop", Usage(prompt_tokens=prompt, completion_tokens=made, codec_tokens=codec), 0)
        for stage, prompt, made, codec in (("thinker", 12, 30, 0), ("talker", 44, 200, 200))
    )
    summary = Summary(stage="thinker", request_id="r", stages=stages, total_ns=1)
    assert tokens_of(summary) == {"prompt": 12, "text": 30, "codec": 200}


def test_a_span_has_the_tokens_of_all_answers() -> None:
    call = Call("r", Share(Budget(1)), Share(Budget(1)), model="omni", tokens={"prompt": 12, "text": 30, "codec": 200})
    facts = describe_generation("/v1/audio/speech", call)
    assert facts["gen_ai.operation.name"] == "generate_content"
    assert (facts["gen_ai.usage.input_tokens"], facts["gen_ai.usage.output_tokens"]) == (12, 230)
    assert not any(name.startswith("gen_ai.usage") for name in describe_generation("", replace(call, tokens={})))


def test_the_date_of_the_certificate_is_known(tmp_path: Path) -> None:
    authority, dates = Authority("ca"), list[float]()
    secret = MountedSecret(tmp_path / "secret", tls_files(authority.issue(lasts=30 * DAY)))
    ServerCertificate(secret.directory, dates.append).check()
    secret.write(tls_files(authority.issue(lasts=60 * DAY)))
    ServerCertificate(secret.directory, dates.append).check()
    assert dates[1] - dates[0] == pytest.approx(30 * 86_400, abs=300)
