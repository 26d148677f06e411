"""`omnipipe run` starts the sample of a paced pipeline with stage servers that cannot import torch or vLLM."""

from __future__ import annotations

import asyncio
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from tools.observability.reference import VLLM

from omni_cli.commands.run import find_models, needs_vllm
from omni_cli.local.pipeline import LocalOptions, LocalPipeline
from omni_cli.local.progress import make_progress
from omni_proto.client import AudioChunk, OmniClient, TextDelta
from omni_proto.pipeline import load_pipeline
from support.processes.polling import PATIENCE_S, until

SAMPLE = Path(__file__).parents[3] / "manifests" / "samples" / "sim-omni.yaml"
NONE = "raise ImportError('this process must do without it')\n"
MOST_BYTES = 100 << 20
ONE_SECOND = {"thinker": {"max_tokens": 8, "ignore_eos": True}, "talker": {"max_tokens": 50, "ignore_eos": True}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPipeline]:
    folder = tmp_path_factory.mktemp("none")
    for name in ("torch", "vllm", "transformers"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(NONE)
    pipeline = load_pipeline(SAMPLE)
    assert not needs_vllm(pipeline)
    models = find_models(pipeline)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))
        with LocalPipeline(pipeline, LocalOptions(model_path=models)) as local:
            with make_progress(Console(quiet=True), ["thinker", "talker", "decoder"]) as progress:
                local.start(progress)
            yield local


def test_text_and_speech_come_in_pieces_and_a_seed_repeats_them(running: LocalPipeline) -> None:
    with OmniClient(running.endpoint) as client:
        events = list(client.generate(text="Say something.", sampling=ONE_SECOND, seed=3))
        again = client.run(text="Say something.", sampling=ONE_SECOND, seed=3)
    audios = [event for event in events if isinstance(event, AudioChunk)]
    kinds = [type(event) for event in events]
    assert len(audios) > 1
    assert kinds.index(TextDelta) < kinds.index(AudioChunk)
    assert sum(len(waveform.data) for waveform in audios) == 2 * 24_000
    assert b"".join(waveform.data for waveform in audios) == again.audio
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == again.text
    assert len(again.text.split()) == 8


def test_a_caller_who_leaves_frees_every_stage(running: LocalPipeline) -> None:
    long = {"thinker": {"max_tokens": 4000, "ignore_eos": True}, "talker": {"max_tokens": 2000, "ignore_eos": True}}
    with OmniClient(running.endpoint) as client:
        for event in client.generate(text="Go on.", sampling=long):
            if isinstance(event, AudioChunk):
                break

    def is_idle() -> bool:
        return all(
            "omni_stage_inflight_requests 0.0" in read_metrics(address.metrics)
            for address in running.addresses.values()
        )

    asyncio.run(until(is_idle))


def test_the_engines_show_what_dashboards_ask_of_vllms(running: LocalPipeline) -> None:
    for stage, address in running.addresses.items():
        page = read_metrics(address.metrics)
        missing = {name for name in VLLM if f"\n{name}{{" not in page}
        assert missing == set(), stage
    assert 'continuous="true"' in read_metrics(running.addresses["thinker"].metrics)


def test_a_stage_server_takes_less_memory_than_a_hundred_mebibytes(running: LocalPipeline) -> None:
    sizes = {}
    for one in running.list_processes():
        process = psutil.Process(one.pid)
        if "omni_stage" in process.cmdline():
            sizes[one.pid] = process.memory_info().rss
    assert len(sizes) == 3
    assert max(sizes.values()) <= MOST_BYTES


def read_metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as response:
        return str(response.read().decode())
