"""The images for CPUs can be built for amd64 and arm64: each package has a wheel for both, whose hash is pinned."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tools.hash_constraints import CONSTRAINTS, IMAGES, lock

from support.processes.bare_venv import find_uv

pytestmark = pytest.mark.full  # asks the package index


@pytest.mark.parametrize("extras", IMAGES["cpu"], ids="-".join)
def test_both_architectures_have_wheels(extras: Sequence[str]) -> None:
    lines = (CONSTRAINTS / "hashes-cpu.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.split()[0]: {one.removeprefix("--hash=sha256:") for one in line.split()[1:]} for line in lines}
    # Packages that have only their source are errors.
    amd64, arm64 = (
        lock(find_uv(), "cpu", extras, f"{machine}-manylinux_2_36", "--only-binary=:all:")
        for machine in ("x86_64", "aarch64")
    )
    for wheels in (amd64, arm64):
        assert {name for name, hashes in wheels.items() if hashes.isdisjoint(pinned[name])} == set()
    compiled = {name.partition("==")[0] for name in amd64.keys() & arm64.keys() if amd64[name].isdisjoint(arm64[name])}
    assert compiled >= {"grpcio"}, "wheels of the machine itself"
