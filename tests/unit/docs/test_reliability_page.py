"""Every test that docs/reliability.md names exists."""

from __future__ import annotations

import re

import pytest


def test_every_test_that_is_named_exists(request: pytest.FixtureRequest) -> None:
    root = request.config.rootpath
    page = (root / "docs" / "reliability.md").read_text()
    named = re.findall(r"`((?:unit|pipeline|engine|processes|controlplane|cluster)/[a-z0-9_/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 15
    for path, function in named:
        file = root / "tests" / path
        assert file.is_file(), path
        if function:
            assert re.search(rf"^ *(async )?def {function}\(", file.read_text(), re.MULTILINE), f"{path}::{function}"
