"""Pipelines, commands and programs in README, docs and sample manifests, as users would copy them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)
"""A command that a console block shows after `$`. A `\\` continues a command on the next line."""


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page."""

    place: str
    """PAGE:LINE, from the repository's root."""
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        return COMMAND.findall(self.text) if self.language == "console" else []


def blocks_of(page: Path) -> list[Block]:
    """Returns the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    return [Block(f"{name}:{text.count(chr(10), 0, m.start()) + 1}", m[1], m[2]) for m in FENCE.finditer(text)]


def all_blocks() -> list[Block]:
    """Returns the blocks of README and of every page of docs."""
    return [block for page in PAGES for block in blocks_of(page)]


def pipelines_in(page: Path) -> dict[str, str]:
    """Returns "PAGE-NAME" -> YAML text of every complete OmniPipeline on the page."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    shown = [(block, yaml.safe_load(block)) for block in blocks]
    pipelines = [(document, block) for block, document in shown if is_pipeline(document)]
    return {f"{page.stem}-{document['metadata']['name']}": block for document, block in pipelines}


def is_pipeline(document: Any) -> bool:
    return isinstance(document, dict) and document.get("kind") == "OmniPipeline"


def sample_pipelines() -> dict[str, str]:
    """Returns file name without suffix -> YAML text of every sample manifest."""
    return {path.stem: path.read_text() for path in sorted((ROOT / "manifests" / "samples").glob("*.yaml"))}


EXAMPLES = {name: text for page in PAGES for name, text in pipelines_in(page).items()}


def console_commands(page: Path) -> dict[str, list[str]]:
    """Returns heading -> the commands that the console blocks below it show."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        blocks = re.findall(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        commands = [command for block in blocks for command in COMMAND.findall(block)]
        if commands:
            found[section.partition("\n")[0]] = commands
    return found


def python_blocks(page: Path) -> dict[str, str]:
    """Returns heading -> the Python program below it, which may span several blocks."""
    sections = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {
        section.partition("\n")[0]: re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S) for section in sections
    }
    return {heading: "".join(blocks) for heading, blocks in found.items() if blocks}
