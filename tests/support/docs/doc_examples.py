"""Pipelines, commands and programs in README, docs and sample manifests, as users would copy them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


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
    """Returns heading -> the commands that the console blocks below it show after `$`.

    A `\\` continues a command on the next line.
    """
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        blocks = re.findall(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        commands = [command for block in blocks for command in re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE)]
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
