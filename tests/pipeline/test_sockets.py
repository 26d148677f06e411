"""Stage servers listen only on the ports that docs/security.md names, and their engines' processes only on loopback."""

from __future__ import annotations

import pytest

from support.machine.sockets import list_listeners
from support.processes.pipelines import RunningPipeline

pytestmark = pytest.mark.pipeline


def test_nothing_listens_beside_the_ports_of_the_stages(tiny_pipeline: RunningPipeline) -> None:
    pids = {one.pid for one in tiny_pipeline.list_processes()}
    assert len(pids) >= 6, "servers and engines"
    listeners = list_listeners(pids)
    known = {port for ports in tiny_pipeline.stages.values() for port in ports.values()}
    assert {one.port for one in listeners} >= known
    beside = sorted(one for one in listeners if one.port not in known)
    assert [one for one in beside if not one.is_local] == []
    assert [one for one in beside if not one.program.startswith("VLLM::")] == [], (
        "of the stage servers not even locally"
    )
