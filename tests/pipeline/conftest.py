"""One running tiny pipeline for the whole session: engines take long to load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_gateway.pipelines import ServedPipeline
from support.gateways import serve_gateway
from support.pipelines import SAMPLES, RunningPipeline, run_pipeline


@pytest.fixture(scope="session")
def tiny_pipeline(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPipeline]:
    """thinker, talker and token2wav as processes of their own, from the sample file."""
    with run_pipeline(SAMPLES / "tiny-omni.yaml", tiny_checkpoint, tmp_path_factory.mktemp("pipeline")) as running:
        yield running


@pytest.fixture(scope="session")
def stream_pipeline(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPipeline]:
    """The sample that streams from thinker to talker, streaming from talker to token2wav too."""
    folder = tmp_path_factory.mktemp("stream-pipeline")
    sample = (SAMPLES / "tiny-omni-stream.yaml").read_text()
    assert "{from: talker, mode: Full}" in sample
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(sample.replace("{from: talker, mode: Full}", "{from: talker, mode: Stream}"))
    with run_pipeline(pipeline, tiny_checkpoint, folder) as running:
        yield running


@pytest.fixture(scope="session")
def tiny_gateway(tiny_pipeline: RunningPipeline) -> Iterator[str]:
    """URL of a gateway in front of the tiny pipeline, which it calls "tiny-omni"."""
    pipeline = ServedPipeline(
        "tiny-omni", f"grpc://{tiny_pipeline.endpoint}", aliases=("tts-1",), voice_aliases={"alloy": "Ethan"}
    )
    with serve_gateway(pipeline) as url:
        yield url
