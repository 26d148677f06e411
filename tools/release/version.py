"""The version, in every file that states it, and the section of the changelog. Pure, except for `read` and `cut`.

pyproject.toml is the version's home. Chart, manifests, the operator's default image and the pages repeat it, because
their readers have no pyproject.toml; `cut` changes them all, and a test checks that they agree.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.compile(r"(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)(?:-(?:alpha|beta|rc)\.(?:0|[1-9]\d*))?")
"""A version of SemVer that PEP 440 reads too: 1.2.3 or 1.2.3-rc.1."""
_PLACE = re.compile(
    r'((?:^version = "|^version: |^appVersion: "|omnipipeline[-/](?:operator|stage):|^ *newTag: ))' + VERSION.pattern,
    re.MULTILINE,
)
_FOREIGN = ("tests/", "examples/", "constraints/", "CHANGELOG.md")
"""Files whose versions are not this repository's, or are those of the past."""


class ReleaseError(Exception):
    """The release cannot be made. The message says what to change."""


def read_version() -> str:
    """Returns the version in pyproject.toml."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def find_versions(text: str) -> set[str]:
    """Returns the versions of this project that a file's text states."""
    return {found[0].removeprefix(found[1]) for found in _PLACE.finditer(text)}


def set_version(text: str, version: str) -> str:
    """Returns the text with another version in every place that states this project's."""
    return _PLACE.sub(rf"\g<1>{version}", text)


def list_files() -> list[Path]:
    """Returns the tracked text files that may state the version."""
    names = subprocess.run(
        ["git", "-C", str(ROOT), "grep", "-lIE", r"[0-9]+\.[0-9]+\.[0-9]+"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [ROOT / name for name in names if not name.startswith(_FOREIGN)]


def cut_changelog(text: str, version: str, day: datetime.date) -> str:
    """Returns the changelog with what is unreleased as the section of a version, below an empty [Unreleased].

    What introduces the unreleased changes, before their first heading, is dropped. Raises ReleaseError if nothing is
    unreleased, or the version has a section.
    """
    if f"## [{version}]" in text:
        raise ReleaseError(f"CHANGELOG.md already has a section for {version}; remove it or choose another version")
    before, heading, rest = text.partition("## [Unreleased]\n")
    changes, next_heading, older = rest.partition("\n## [")
    start = changes.find("### ")
    if not heading or start < 0 or "\n- " not in changes:
        raise ReleaseError("CHANGELOG.md lists no change below ## [Unreleased]; there is nothing to release")
    section = f"## [{version}] - {day.isoformat()}\n\n{changes[start:].rstrip()}\n"
    return f"{before}{heading}\n{section}{next_heading}{older}"


def notes_of(changelog: str, version: str) -> str:
    """Returns the section of a version without its heading. Raises ReleaseError if there is none."""
    _, heading, rest = changelog.partition(f"## [{version}] - ")
    if not heading:
        raise ReleaseError(f"CHANGELOG.md has no section for {version}")
    return rest.partition("\n")[2].partition("\n## [")[0].strip() + "\n"


def cut(version: str, day: datetime.date) -> None:
    """Make `version` the version of this tree, if it is not yet: changelog and every file that states the version.

    Raises ReleaseError if the version is no version, or nothing is unreleased.
    """
    if not VERSION.fullmatch(version):
        raise ReleaseError(f"VERSION={version} is no version such as 1.2.3 or 1.2.3-rc.1")
    changelog = ROOT / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    if version == read_version() and f"## [{version}]" in text:
        return
    changelog.write_text(cut_changelog(text, version, day), encoding="utf-8")
    for file in list_files():
        old = file.read_text(encoding="utf-8")
        if (new := set_version(old, version)) != old:
            file.write_text(new, encoding="utf-8")
