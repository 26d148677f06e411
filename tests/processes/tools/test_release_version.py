"""The version and the changelog of a release (tools/release/version.py)."""

from __future__ import annotations

import datetime

import pytest
from tools.release.version import (
    ROOT,
    VERSION,
    ReleaseError,
    cut_changelog,
    find_versions,
    list_files,
    notes_of,
    read_version,
    set_version,
)

DAY = datetime.date(2026, 12, 1)
CHANGELOG = """# Changelog

## [Unreleased]

Nothing was released yet.

### Added

- A gateway.

## [0.0.1] - 2026-01-01

### Added

- A start.
"""


def test_every_file_states_the_same_version() -> None:
    stated = {str(file.relative_to(ROOT)): find_versions(file.read_text(encoding="utf-8")) for file in list_files()}
    stated = {name: versions for name, versions in stated.items() if versions}
    assert stated.keys() >= {"pyproject.toml", "helm/omnipipeline/Chart.yaml", "manifests/operator.yaml"}
    assert {name: versions for name, versions in stated.items() if versions != {read_version()}} == {}


def test_set_version_changes_what_find_versions_finds_and_no_more() -> None:
    text = (
        'version = "1.2.3"\n"helm>=1.2.3"\nimage: r/omnipipeline-stage:1.2.3-cpu and omnipipeline-operator:1.2.3.\n'
        'appVersion: "1.2.3"\n  newTag: 1.2.3\n'
    )
    new = set_version(text, "2.0.0-rc.1")
    assert new == (
        'version = "2.0.0-rc.1"\n"helm>=1.2.3"\n'
        "image: r/omnipipeline-stage:2.0.0-rc.1-cpu and omnipipeline-operator:2.0.0-rc.1.\n"
        'appVersion: "2.0.0-rc.1"\n  newTag: 2.0.0-rc.1\n'
    )
    assert find_versions(new) == {"2.0.0-rc.1"}
    assert set_version(new, "1.2.3") == text


def test_the_changelog_is_cut() -> None:
    cut = cut_changelog(CHANGELOG, "0.1.0", DAY)
    assert cut == CHANGELOG.replace(
        "## [Unreleased]\n\nNothing was released yet.\n", "## [Unreleased]\n\n## [0.1.0] - 2026-12-01\n"
    )
    assert notes_of(cut, "0.1.0") == "### Added\n\n- A gateway.\n"
    assert notes_of(cut, "0.0.1") == "### Added\n\n- A start.\n"


def test_nothing_is_released_twice_or_empty() -> None:
    cut = cut_changelog(CHANGELOG, "0.1.0", DAY)
    with pytest.raises(ReleaseError, match="lists no change below"):
        cut_changelog(cut, "0.2.0", DAY)
    with pytest.raises(ReleaseError, match=r"already has a section for 0\.1\.0"):
        cut_changelog(cut, "0.1.0", DAY)
    with pytest.raises(ReleaseError, match=r"no section for 3\.0\.0"):
        notes_of(cut, "3.0.0")


@pytest.mark.parametrize("version", ["1.2", "v1.2.3", "01.2.3", "1.2.3-", "1.2.3-rc1", "1.2.3+build", "1.2.3\n"])
def test_what_is_no_version(version: str) -> None:
    assert not VERSION.fullmatch(version)
