"""Every code block of README and docs has a test that uses it, or a reason for none.

The omnipipe commands, make targets and repository files in console blocks exist.
"""

from __future__ import annotations

import re
import shlex
import sys
from itertools import pairwise

import pytest
import typer
import yaml

from omni_cli.main import app
from support.docs.doc_blocks import ROOT, USES, Block, all_blocks, blocks_of, find_use, render_list
from support.docs.doc_examples import EXAMPLES, console_commands

COMMANDS = [(block, command) for block in all_blocks() for command in block.commands]
MAKE_TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_block_has_a_test_or_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert [f"{block.page}:{block.line}" for block in all_blocks() if find_use(block) is None] == []
    with capsys.disabled():
        sys.stdout.write(f"\n{render_list()}\n")


def test_every_use_fits_a_block_and_names_a_test_that_exists() -> None:
    used = {use for block in all_blocks() if (use := find_use(block))}
    assert [use for use in USES if use not in used] == []
    for use in USES:
        assert bool(use.test) != bool(use.reason), use
        named = [use.test] if use.test else re.findall(r"[a-z_0-9/]+\.py", use.reason)
        assert [path for path in named if not (ROOT / "tests" / path).is_file()] == []


@pytest.mark.parametrize(("block", "command"), COMMANDS, ids=[f"{b.page}:{b.line}" for b, _ in COMMANDS])
def test_commands_name_what_exists(block: Block, command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "omnipipe":
        group = typer.main.get_command(app)
        subcommand = group.commands[words[1]]  # type: ignore[attr-defined]
        subcommand.make_context(words[1], [*words[2:]], resilient_parsing=False).close()
    if words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word]
        assert set(targets) <= MAKE_TARGETS
    named = [word for flag, word in pairwise(words) if flag in ("-f", "-k", "PIPELINE")]
    named += [word for word in words if re.match(r"(manifests|helm|docs)/", word)]
    missing = [path for path in named if path != "pipeline.yaml" and not (ROOT / path).exists()]
    assert missing == [], block.page


def test_the_edge_of_the_streaming_page_is_valid() -> None:
    (block,) = (block for block in blocks_of(ROOT / "docs" / "streaming.md") if block.language == "yaml")
    (stage,) = yaml.safe_load(block.text)
    pipeline = yaml.safe_load(EXAMPLES["pipelines-qwen25-omni"])
    assert stage.items() <= pipeline["spec"]["stages"][1].items()


def test_kind_installs_and_serves_as_the_readme_does() -> None:
    readme, kind = (console_commands(ROOT / page) for page in ("README.md", "docs/kind.md"))
    assert kind["Install and serve"] == readme["In a cluster"]
