"""Hooks of mkdocs for the documentation site: links to files outside docs/, and llms.txt.

A link from a page to another file of the repository must name a file that exists. On GitHub's runners it becomes a link
to that file there (GITHUB_REPOSITORY); elsewhere only its text stays.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?!https?:|mailto:|#)[^)#\s]+)(#[^)\s]*)?\)")
LOG = logging.getLogger("mkdocs.omnipipeline")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replaces the links of a page that leave docs/, or lead to a folder or a file that is no page."""
    folder = (DOCS / page.file.src_uri).parent

    def replace(found: re.Match[str]) -> str:
        text, path, anchor = found[1], found[2], found[3] or ""
        target = (folder / path).resolve()
        if not target.exists():
            LOG.warning("%s links to %s, which does not exist", page.file.src_uri, path)
        if target.is_relative_to(DOCS) and target.is_file():
            return found[0]
        if repository := os.environ.get("GITHUB_REPOSITORY"):
            server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
            return f"[{text}]({server}/{repository}/blob/main/{target.relative_to(ROOT)}{anchor})"
        return text

    return LINK.sub(replace, markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """Writes llms.txt, the list of all pages with their first sentence, and llms-full.txt with their text."""
    listed, whole = [f"# {config['site_name']}", "", f"> {config['site_description']}"], []
    for section in config["nav"]:
        ((name, pages),) = section.items()
        listed += ["", f"## {name}", ""]
        for path in paths_of(pages):
            text = (DOCS / path).read_text(encoding="utf-8")
            title = text.partition("\n")[0].removeprefix("# ")
            listed.append(f"- [{title}]({url_of(path)}): {first_sentence(text)}")
            whole.append(text)
    site = Path(config["site_dir"])
    (site / "llms.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(whole), encoding="utf-8")


def paths_of(nav: Any) -> list[str]:
    """Returns the paths of the pages in a part of the navigation."""
    if isinstance(nav, str):
        return [nav]
    values = nav.values() if isinstance(nav, dict) else nav
    return [path for value in values for path in paths_of(value)]


def url_of(path: str) -> str:
    """Returns the address of a page on the site, relative to its root."""
    return path.removesuffix("README.md") or "./" if path.endswith("README.md") else path.removesuffix(".md") + "/"


def first_sentence(text: str) -> str:
    """Returns the first sentence of a page's first paragraph, without links."""
    paragraph = next((part for part in text.split("\n\n")[1:] if re.match(r"[A-Z\[*`](?!``)", part)), "")
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    return re.split(r"(?<=[.:]) (?=[A-Z])", plain, maxsplit=1)[0]
