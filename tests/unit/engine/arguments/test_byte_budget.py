"""How much memory a stage may use, as the kernel reports it."""

from __future__ import annotations

from omni_stage.engine.arguments.byte_budget import parse_cgroup_limit, parse_memory_total


def test_memory_limits() -> None:
    assert parse_cgroup_limit("1048576\n") == 1 << 20
    assert parse_cgroup_limit("max\n") is None
    assert parse_cgroup_limit("9223372036854771712") is None
    assert parse_memory_total("MemFree: 1 kB\nMemTotal:  2048 kB\n") == 2 << 20
    assert parse_memory_total("") is None
