"""Garbage collections during the tests look only at objects that were created after the imports."""

from __future__ import annotations

import gc

import pytest


@pytest.mark.parametrize("run", ["after the imports", "after an engine's end"])
def test_imported_objects_are_left_out(run: str) -> None:
    """The first run ends as an engine does, which changes nothing for the second."""
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000, run
    gc.unfreeze()
    gc.collect()
