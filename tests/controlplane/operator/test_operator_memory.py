"""The operator's memory while pipelines are created and deleted many times."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import build_pipeline, list_labelled, wait_settled
from support.controlplane.server.api import Api, eventually

pytestmark = [pytest.mark.controlplane, pytest.mark.full, pytest.mark.timeout(1500)]

CYCLES, PIPELINES = 5, 20
DRIFT = 1.10


def test_memory_does_not_drift(api: Api, make_operator: Callable[..., OperatorProcess]) -> None:
    """The first cycle fills imports and caches. The last one leaves at most 10% more memory in use than the first."""
    names = [f"p{index}" for index in range(PIPELINES)]
    resident: list[int] = []
    with make_operator() as operator:
        for _ in range(CYCLES + 1):
            for name in names:
                api.create(build_pipeline(name))
            for name in names:
                wait_settled(api, name, timeout_s=300)
            for name in names:
                api.delete("OmniPipeline", name)
            eventually(lambda: all(list_labelled(api, name) == [] for name in names), timeout_s=300)
            wait_idle(operator)
            resident.append(operator.rss_bytes())
    assert resident[-1] <= DRIFT * resident[0], [round(size / 2**20, 1) for size in resident]
