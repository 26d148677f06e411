"""Real load, real scaling: see live_scaling.py, which runs in a network of its own. In `make full`: six minutes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.controlplane.pod_network import PodNetworkError, run_inside

pytestmark = [pytest.mark.controlplane, pytest.mark.full]


@pytest.mark.parametrize("test", ["test_to_zero_and_back", "test_four_times_the_load"])
def test_pods_as_processes(test: str, tmp_path: Path) -> None:
    try:
        sys.stdout.write(run_inside(tmp_path, Path(__file__).with_name("live_scaling.py"), "-k", test, timeout_s=1200))
    except PodNetworkError as error:
        pytest.skip(f"this machine allows no network namespaces: {error}")
