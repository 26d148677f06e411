"""A pipeline whose stage servers are forks of a server that has imported vLLM.

It needs one third of the CPU time of `omnipipe run` to start. The stage servers get the same configurations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from omni_cli.local.pipeline import compile_local
from omni_cli.local.ports import pick_ports
from omni_proto.pipeline import load_pipeline, order_stages
from omni_proto.stage_config import StageConfig
from omni_stage.models.asr.tiny import write_tiny_checkpoint as write_tiny_whisper
from omni_stage.models.voice.tiny import write_tiny_checkpoint
from support.models.generic_checkpoint import write_tiny_text_checkpoint
from support.processes.pipelines import RunningPipeline
from support.processes.polling import PATIENCE_S
from support.processes.stage_processes import StageProcess


@contextmanager
def fork_pipeline(file: Path, model_dir: Path | Mapping[str, Path], folder: Path) -> Iterator[RunningPipeline]:
    """Serves a pipeline until the block ends. If a stage does not start, the error has the end of that stage's log.

    model_dir: the checkpoint of all stages, or the checkpoints by stage name.
    """
    pipeline = load_pipeline(file)
    names = [stage.name for stage in order_stages(pipeline)]
    models = str(model_dir) if isinstance(model_dir, Path) else {name: str(model_dir[name]) for name in names}
    ports = dict(zip(names, pick_ports(len(names)), strict=True))
    with ExitStack() as stack:
        processes = [
            stack.enter_context(StageProcess([_patient(config)], folder, fork=True)).start(wait=False)
            for config in compile_local(pipeline, models, ports)
        ]
        stages: dict[str, dict[str, int]] = {}
        for process in processes:
            process.wait_ready()
            stages |= process.ports
        servers = {process.name: process.pid for process in processes}
        yield RunningPipeline(f"127.0.0.1:{ports[names[0]]}", stages, servers, folder)


def _patient(config: StageConfig) -> StageConfig:
    """Returns the configuration with time to decode the most expensive media on a machine that runs other tests too."""
    return config.model_copy(update={"timeouts": config.timeouts.model_copy(update={"prepare": PATIENCE_S})})


_CALLING = """
apiVersion: omnipipeline.io/v1alpha1
kind: OmniPipeline
metadata: {name: calling}
spec:
  stages:
  - name: asr
    component: asr/whisper
    model: {uri: "file:///models/asr"}
    outputs: [Transcript]
    engineArgs: {dtype: float32, maxNumSeqs: 4, kvCacheMemoryMib: 64}
    defaultSampling: {maxTokens: 24}
  - name: llm
    component: generic/llm
    inputs: [{from: asr, mode: Full}]
    model: {uri: "file:///models/llm"}
    outputs: [Text]
    engineArgs: {dtype: float32, maxModelLen: 2048, kvCacheMemoryMib: 16, enforceEager: true, toolCallParser: hermes}
    defaultSampling: {temperature: 1, maxTokens: %d}
  - name: voice
    component: voice/vits
    model: {uri: "file:///models/voice"}
    inputs: [{from: llm, mode: Stream}]
    outputs: [Audio]
"""


@contextmanager
def fork_calling_pipeline(folder: Path, max_tokens: int, *, hears: bool = False) -> Iterator[RunningPipeline]:
    """Serves a text model that calls functions, and a voice. max_tokens: of requests that set none. hears: whether
    Whisper is before it."""
    models = {
        "llm": write_tiny_text_checkpoint(folder / "llm", seed=3, tools=True),
        "voice": write_tiny_checkpoint(folder / "voice"),
    }
    document = yaml.safe_load(_CALLING % max_tokens)
    if hears:
        models["asr"] = write_tiny_whisper(folder / "asr")
    else:
        del document["spec"]["stages"][0], document["spec"]["stages"][0]["inputs"]
    file = folder / "pipeline.yaml"
    file.write_text(json.dumps(document))
    with fork_pipeline(file, models, folder) as pipeline:
        yield pipeline
