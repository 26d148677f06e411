"""One running tiny pipeline for the whole session: engines take long to load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pipelines import SAMPLES, RunningPipeline, run_pipeline


@pytest.fixture(scope="session")
def tiny_pipeline(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPipeline]:
    """thinker, talker and token2wav as processes of their own, from the sample with Full edges."""
    with run_pipeline(SAMPLES / "tiny-omni-full.yaml", tiny_checkpoint, tmp_path_factory.mktemp("pipeline")) as running:
        yield running
