"""Fixtures of running tiny pipelines. Each runs for the whole test session, because engines take long to load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from omni_gateway.entries.pipelines import ServedPipeline
from support.peers.gateways import serve_gateway
from support.processes.forked_pipelines import fork_pipeline
from support.processes.pipelines import SAMPLES, RunningPipeline


@pytest.fixture(scope="session")
def tiny_pipeline(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPipeline]:
    """thinker, talker and token2wav, each in its own process, from the sample with Full edges."""
    with fork_pipeline(
        SAMPLES / "tiny-omni-full.yaml", tiny_checkpoint, tmp_path_factory.mktemp("pipeline")
    ) as running:
        yield running


@pytest.fixture(scope="session")
def stream_pipeline(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPipeline]:
    """The stages of `tiny_pipeline`, from the sample whose edges are both in Stream mode."""
    folder = tmp_path_factory.mktemp("stream-pipeline")
    with fork_pipeline(SAMPLES / "tiny-omni.yaml", tiny_checkpoint, folder) as running:
        yield running


@pytest.fixture(scope="session")
def qwen3_pipeline(
    make_tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningPipeline]:
    """Qwen3-Omni's stages from its sample, whose edges are both in Stream mode."""
    checkpoint = make_tiny_checkpoint(0, "small", "qwen3_omni")
    with fork_pipeline(SAMPLES / "tiny-qwen3-omni.yaml", checkpoint, tmp_path_factory.mktemp("qwen3")) as running:
        yield running


@pytest.fixture(scope="session")
def qwen3_gateway(qwen3_pipeline: RunningPipeline) -> Iterator[str]:
    """URL of a gateway in front of `qwen3_pipeline`. It calls the pipeline "tiny-omni", like `tiny_gateway`."""
    pipeline = ServedPipeline(
        "tiny-omni", f"grpc://{qwen3_pipeline.endpoint}", aliases=("tts-1",), voice_aliases={"alloy": "Ethan"}
    )
    with serve_gateway(pipeline) as url:
        yield url


@pytest.fixture(scope="session")
def tiny_gateway(tiny_pipeline: RunningPipeline) -> Iterator[str]:
    """URL of a gateway in front of `tiny_pipeline`. The gateway calls the pipeline "tiny-omni"."""
    pipeline = ServedPipeline(
        "tiny-omni", f"grpc://{tiny_pipeline.endpoint}", aliases=("tts-1",), voice_aliases={"alloy": "Ethan"}
    )
    with serve_gateway(pipeline) as url:
        yield url
