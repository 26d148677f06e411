"""Every folder of tests/unit, except NOT_SHIPPED, mirrors a package, so its tests are found below the same path."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "tests" / "unit"
PACKAGES = {
    "cli": "cli/omni_cli",
    "gateway": "gateway/omni_gateway",
    "kube": "kube/omni_kube",
    "operator": "operator/omni_operator",
    "proto": "proto/omni_proto",
}
"""Folder of tests/unit -> package. Any other folder is one of the stage server's packages, or is in NOT_SHIPPED."""
STAGE_SERVER = "stage_server/omni_stage"
NOT_SHIPPED = {"benchmarks", "docs", "helm", "observability", "runner", "source", "support"}


def has_tests(folder: Path) -> bool:
    return any(folder.rglob("test_*.py"))


def test_every_folder_of_unit_tests_is_one_of_the_product() -> None:
    checked = 0
    for folder in sorted(UNIT.rglob("*")):
        first, *rest = folder.relative_to(UNIT).parts
        if not folder.is_dir() or first in NOT_SHIPPED or not has_tests(folder):
            continue
        package = ROOT / PACKAGES.get(first, f"{STAGE_SERVER}/{first}")
        assert package.joinpath(*rest).is_dir(), f"{folder.relative_to(ROOT)} has no {package.joinpath(*rest)}"
        checked += 1
    assert checked > 20
