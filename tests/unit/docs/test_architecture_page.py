"""The tour of the code in docs/architecture.md lists files and definitions that exist, in numbered order."""

from __future__ import annotations

import re

from support.docs.doc_examples import ROOT

PAGE = ROOT / "docs" / "architecture.md"
STAGE = ROOT / "stage_server" / "omni_stage"
HOP = re.compile(r"^\| (\d+) \| `([^`]+)` \| `(\w+)` \| (.+) \|$", re.MULTILINE)


def test_every_hop_names_a_definition_of_its_file() -> None:
    hops = HOP.findall(PAGE.read_text())
    assert len(hops) > 40
    for _, path, name, _ in hops:
        file = ROOT / path if (ROOT / path).exists() else STAGE / path
        assert file.is_file(), path
        assert re.search(rf"^\s*(async def|def|class) {name}\b", file.read_text(), re.MULTILINE), f"{path}: {name}"


def test_hops_are_numbered_in_order() -> None:
    numbers = [int(number) for number, *_ in HOP.findall(PAGE.read_text())]
    second = numbers.index(1, 1)
    assert numbers == [*range(1, second + 1), *range(1, len(numbers) - second + 1)]
    assert f"These are {second} files" in PAGE.read_text()
