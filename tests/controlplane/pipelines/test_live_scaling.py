"""Real load, real scaling: see live_scaling.py and live_replicas.py, which run in a network of their own.

In `make full`: a quarter of an hour, and as long again the first time for the build of KEDA.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.controlplane.binaries import find_binaries
from support.controlplane.keda import PROGRAMS
from support.controlplane.pod_network import PodNetworkError, run_inside
from support.peers.prometheus import prometheus_program

pytestmark = [pytest.mark.controlplane, pytest.mark.full, pytest.mark.timeout(5400)]
LONGEST_S = 3000


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("live_scaling.py", "test_to_zero_and_back"),
        ("live_scaling.py", "test_four_times_the_load"),
        ("live_replicas.py", "test_no_call_fails_while_replicas_go_and_come"),
        ("live_replicas.py", "test_a_quota_stops_the_growth_and_the_condition_says_so"),
        ("live_replicas.py", "test_keda_follows_the_operators_answer"),
    ],
)
def test_pods_as_processes(file: str, test: str, tmp_path: Path) -> None:
    if "keda" in test:
        # Here, because inside there is no way to the Internet.
        find_binaries(*PROGRAMS)
        prometheus_program("prometheus")
    program = Path(__file__).with_name(file)
    timeout = f"timeout={LONGEST_S}"
    try:
        sys.stdout.write(run_inside(tmp_path, program, "-k", test, "-o", timeout, timeout_s=LONGEST_S))
    except PodNetworkError as error:
        pytest.skip(f"this machine allows no network namespaces: {error}")
