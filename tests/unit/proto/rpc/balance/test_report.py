"""Load reports on the wire, and which pods a target has."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given, strategies as st

from omni_proto.rpc.balance.addresses import authority_of, resolve_name, resolver_of
from omni_proto.rpc.balance.report import LOAD_KEY, MAX_REPORT_BYTES, LoadReport, decode_report, find_report
from omni_proto.rpc.channels import pod_options
from omni_proto.stage.v1.orca_pb2 import OrcaLoadReport

REPORT = LoadReport(3, 2, 1.5, 0.25, 0.75, 4.0, 0.5)


def test_a_report_survives_the_wire() -> None:
    assert decode_report(REPORT.encode()) == REPORT
    assert find_report([("other", b"x"), (LOAD_KEY, REPORT.encode())]) == REPORT
    assert find_report([("other", "x")]) is None
    assert find_report(None) is None


def test_the_wire_format_is_orcas() -> None:
    """Bytes by hand, from the field numbers of xds.data.orca.v3.OrcaLoadReport."""
    assert OrcaLoadReport(rps_fractional=1, eps=2, application_utilization=3).SerializeToString() == bytes.fromhex(
        "31000000000000f03f390000000000000040490000000000000840"
    )
    assert OrcaLoadReport(named_metrics={"a": 1.0}).SerializeToString() == bytes.fromhex("420c0a016111000000000000f03f")


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    report = decode_report(data)
    assert report is None or report.requests >= 0


@pytest.mark.parametrize(
    "data",
    [
        OrcaLoadReport(rps_fractional=1).SerializeToString(),
        OrcaLoadReport(named_metrics={"omni.running": -1}).SerializeToString(),
        OrcaLoadReport(named_metrics={"omni.running": float("nan")}).SerializeToString(),
        OrcaLoadReport(named_metrics={"omni.running": 1, "x" * MAX_REPORT_BYTES: 1}).SerializeToString(),
    ],
    ids=["another server's", "negative", "not a number", "too long"],
)
def test_reports_that_say_nothing(data: bytes) -> None:
    assert decode_report(data) is None


@pytest.mark.parametrize(
    ("target", "authority", "is_resolved"),
    [
        ("dns:///a.b.svc.cluster.local.:50051", "a.b.svc.cluster.local.:50051", True),
        ("dns:a.b:1", "a.b:1", True),
        ("a.b:1", "a.b:1", True),
        ("ipv4:10.0.0.1:1,10.0.0.2:1", "", True),
        ("ipv6:[::1]:1,[::2]:1", "", True),
        ("ipv4:10.0.0.1:1", "", False),
        ("10.0.0.1:1", "10.0.0.1:1", False),
        ("[::1]:1", "[::1]:1", False),
        ("dns://127.0.0.1:53/a.b:1", "", False),
        ("unix:/run/socket", "", False),
        ("a.b", "", False),
    ],
)
def test_targets(target: str, authority: str, is_resolved: bool) -> None:
    assert (authority_of(target), resolver_of(target) is not None) == (authority, is_resolved)


def test_listed_pods() -> None:
    listed = resolver_of("ipv4:10.0.0.1:1,10.0.0.2:2")
    assert listed is not None
    assert listed() == ("ipv4:10.0.0.1:1", "ipv4:10.0.0.2:2")


@pytest.mark.parametrize(
    ("hosts", "pods"),
    [
        (["10.0.0.2", "10.0.0.1", "10.0.0.1"], ("ipv4:10.0.0.1:5", "ipv4:10.0.0.2:5")),
        (["fd00::1", "fd00::2", "10.0.0.1"], ("ipv6:[fd00::1]:5", "ipv6:[fd00::2]:5")),
        (["::1", "127.0.0.1"], ()),
    ],
    ids=["each once", "one family of a dual-stack Service", "loopback: gRPC tries both"],
)
def test_names(hosts: list[str], pods: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(host: str, port: int, *, type: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        families = [socket.AF_INET6 if ":" in one else socket.AF_INET for one in hosts]
        return [(family, type, 6, "", (one, port)) for family, one in zip(families, hosts, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    assert resolve_name("a.b", 5) == pods


def test_a_pods_channel_keeps_the_name() -> None:
    assert dict(pod_options("a.b:1", None))["grpc.default_authority"] == "a.b:1"
    assert "grpc.default_authority" not in dict(pod_options("ipv4:10.0.0.1:1,10.0.0.2:2", None))
    assert "grpc.default_authority" not in dict(pod_options("a.b:1", [("grpc.ssl_target_name_override", "c")]))
