"""What `omnipipe run` prints while engines load."""

from __future__ import annotations

import re
from io import StringIO

from rich.console import Console

from omni_cli.local.progress import make_progress

STAGES = ["thinker", "token2wav"]


def show(*, terminal: bool) -> str:
    """Returns the output while two stages load and become ready. The thinker loads twice, as if its port was taken."""
    text = StringIO()
    console = Console(file=text, force_terminal=terminal, width=80, color_system=None)
    with make_progress(console, STAGES) as progress:
        for stage in [*STAGES, "thinker"]:
            progress.loading(stage)
        for stage in STAGES:
            progress.ready(stage, 1.25)
    return text.getvalue()


def test_a_pipe_gets_a_line_for_each_change() -> None:
    assert show(terminal=False).splitlines() == [
        "thinker: loading",
        "token2wav: loading",
        "thinker: loading",
        "thinker: ready after 1.2 s",
        "token2wav: ready after 1.2 s",
    ]


def test_a_terminal_ends_with_a_tick_for_each_stage() -> None:
    last = re.split(r"\x1b\[\d*[A-Z]", show(terminal=True))[-1]  # the text after the last cursor movement
    assert [line.split()[:3] for line in last.splitlines()[:2]] == [["✓", stage, "ready"] for stage in STAGES]
