"""Ports for the stages of a local run."""

from __future__ import annotations

import random
import socket

import pytest

from omni_cli.local.ports import DEFAULT_RANGE, RANGE_VARIABLE, NoFreePortError, pick_ports, port_range


@pytest.mark.parametrize("text", ["20000", "a-b", "30000-20000", "80-90", "65000-70000", "1-2-3"])
def test_a_malformed_port_range_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(RANGE_VARIABLE, text)
    with pytest.raises(NoFreePortError, match=RANGE_VARIABLE):
        pick_ports(1)


def test_default_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RANGE_VARIABLE, raising=False)
    assert port_range() == DEFAULT_RANGE


def test_a_taken_port_is_not_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = pick_ports(1)
    monkeypatch.setenv(RANGE_VARIABLE, f"{port}-{port}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(NoFreePortError, match="only 0 of 1 free ports"):
            pick_ports(1)


def test_two_programs_with_one_seed_pick_different_ports() -> None:
    picked = []
    for _ in range(2):
        random.seed(0)
        picked.append(pick_ports(8))
    assert picked[0] != picked[1]
