"""Compiles an OmniPipeline to StageConfigs. Pure; used by the operator and by local runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from omni_proto.errors import OmniProtoError
from omni_proto.pipeline.problems import PipelineError, Problem
from omni_proto.pipeline.types.kubernetes import ACCELERATOR_PATTERN, GPU_RESOURCES
from omni_proto.pipeline.types.resource import Model, OmniPipeline, Stage
from omni_proto.stage_config import (
    DownstreamStage,
    InputEdge,
    Listen,
    MediaLimits,
    Modality,
    ModelSource,
    StageConfig,
    Timeouts,
)


class ModelPathError(OmniProtoError, ValueError):
    """The model's uri is not a path on this machine."""


def order_stages(pipeline: OmniPipeline) -> list[Stage]:
    """Returns the stages in the order of the graph: depth-first from the entry, with branches in file order."""
    order: list[Stage] = []
    pending = [stage for stage in pipeline.spec.stages if not stage.inputs]
    while pending:
        stage = pending.pop(0)
        order.append(stage)
        pending = [*readers_of(pipeline, stage.name), *pending]
    return order


def readers_of(pipeline: OmniPipeline, name: str) -> list[Stage]:
    """Returns the stages that read the stage of that name, in file order."""
    return [stage for stage in pipeline.spec.stages if stage.inputs and stage.inputs[0].source == name]


def stages_from(pipeline: OmniPipeline, name: str) -> list[Stage]:
    """Returns the stage of that name and all stages below it, in the order of the graph."""
    return [
        pipeline.stage(name),
        *(below for reader in readers_of(pipeline, name) for below in stages_from(pipeline, reader.name)),
    ]


def outputs_from(pipeline: OmniPipeline, name: str) -> list[Modality]:
    """Returns the modalities that the stage or any stage below it returns, in the order of Modality."""
    found = {output for stage in stages_from(pipeline, name) for output in stage.outputs}
    return [output for output in Modality if output in found]


def answering_stage(pipeline: OmniPipeline) -> str | None:
    """Returns the name of the stage whose text is the answer: of those that return Text, the last in the order of the
    graph. None if no stage does."""
    writing = [stage.name for stage in order_stages(pipeline) if Modality.TEXT in stage.outputs]
    return writing[-1] if writing else None


def stages_for_outputs(pipeline: OmniPipeline, outputs: Collection[Modality]) -> list[Stage]:
    """Returns the stages that a request for these modalities calls, in the order of the graph.

    Empty outputs mean all modalities that the pipeline declares. Raises ValueError if it does not declare one of them.
    """
    entry = order_stages(pipeline)[0].name
    declared = outputs_from(pipeline, entry)
    unknown = [output.value for output in outputs if output not in declared]
    if unknown:
        raise ValueError(
            f"pipeline {pipeline.metadata.name!r} does not return {', '.join(unknown)}; "
            f"it returns {', '.join(output.value for output in declared)}"
        )
    wanted = set(outputs) or set(declared)
    return [stage for stage in order_stages(pipeline) if wanted.intersection(outputs_from(pipeline, stage.name))]


def describe_model(model: Model) -> str:
    """Returns a checkpoint as text: its uri, and @REVISION if one is named."""
    return f"{model.uri}@{model.revision}" if model.revision else model.uri


def gpus_of(stage: Stage) -> int:
    """Returns the GPU count of one pod of the stage; 0 means CPU.

    Raises PipelineError if the count is not a whole number. The API server's rules refuse such counts; the types do
    not.
    """
    counts = {name: stage.resources.limits[name] for name in GPU_RESOURCES if name in stage.resources.limits}
    for name, count in counts.items():
        if not str(count).isdecimal():
            problem = Problem(f"resources.limits[{name}]", f"must be a whole number, found {count}")
            raise PipelineError(f"stage {stage.name}", [problem])
    return sum(int(count) for count in counts.values())


def devices_of(stage: Stage) -> int:
    """Returns the number of GPUs of one pod for start limits and volumes: its GPU count, else 1 if it has other
    accelerators or claims; 0 means CPU.

    Raises PipelineError if the GPU count is not a whole number.
    """
    has_other = bool(stage.resources.claims) or any(map(is_accelerator, stage.resources.limits))
    return gpus_of(stage) or int(has_other)


def is_accelerator(name: str) -> bool:
    """Returns whether the resource of that name is a GPU or another accelerator."""
    return name in GPU_RESOURCES or re.search(ACCELERATOR_PATTERN, name) is not None


def resolve_model_paths(
    pipeline: OmniPipeline, model_dir: str | None = None, stage_dirs: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the directory of each stage's checkpoint on this machine, in the order of the graph.

    stage_dirs has directories by stage name, which replace the model of that stage. model_dir replaces spec.model. For
    all other stages, the model must be a file:// uri. Raises ModelPathError for hf:// and pvc://, which a local run
    cannot read by itself, and for directories that no stage uses.
    """
    chosen = stage_dirs or {}
    stages = order_stages(pipeline)
    names = [stage.name for stage in stages]
    if unknown := [name for name in chosen if name not in names]:
        raise ModelPathError(f"--model-dir {unknown[0]}=DIR names no stage; the stages are {', '.join(names)}")
    if model_dir is not None and not any(stage.model is None and stage.name not in chosen for stage in stages):
        raise ModelPathError(
            f"--model-dir {model_dir} replaces spec.model, which no stage uses; "
            "give the directory of a stage's own checkpoint with --model-dir STAGE=DIR"
        )
    paths: dict[str, str] = {}
    missing: list[str] = []
    for stage in stages:
        uri = pipeline.model_of(stage).uri
        path = chosen.get(stage.name) or (model_dir if stage.model is None else None)
        if path or uri.startswith("file://"):
            paths[stage.name] = path or uri.removeprefix("file://")
        else:
            missing.append(_not_local(stage, uri))
    if missing:
        raise ModelPathError("\n".join(dict.fromkeys(missing)))
    return paths


def _not_local(stage: Stage, uri: str) -> str:
    field, option = (
        ("spec.model.uri", "DIR") if stage.model is None else (f"model.uri of stage {stage.name}", f"{stage.name}=DIR")
    )
    return (
        f"{field} is {uri}, which is not a directory on this machine; "
        f"give the directory of the checkpoint with --model-dir {option}"
    )


def compile_stages(
    pipeline: OmniPipeline,
    *,
    target_for: Callable[[Stage], str],
    model_path_for: Callable[[Stage], str],
    model_key_for: Callable[[Stage], str] | None = None,
    listen_for: Callable[[Stage], Listen] = lambda stage: Listen(),
) -> list[StageConfig]:
    """Returns the configuration of every stage, in the order of the graph.

    target_for returns the gRPC target at which the upstream stage calls a stage. model_path_for returns the
    checkpoint's directory as the stage's server sees it. model_key_for returns a text that is equal for stages with the
    same checkpoint; by default, it is made of the model's uri and revision. listen_for returns the address and ports to
    listen on; the default is for a pod.
    """

    def key_of(stage: Stage) -> str:
        return describe_model(pipeline.model_of(stage)) if model_key_for is None else model_key_for(stage)

    def compile_edge(above: Stage, stage: Stage) -> DownstreamStage:
        below = stages_from(pipeline, stage.name)
        return DownstreamStage(
            stage=stage.name,
            target=target_for(stage),
            mode=stage.inputs[0].mode,
            component=stage.component,
            stages=[item.name for item in below],
            outputs=outputs_from(pipeline, stage.name),
            other_model=any(key_of(item) != key_of(above) for item in below),
        )

    def below(stage: Stage) -> list[str]:
        return [item.name for item in stages_from(pipeline, stage.name)[1:]]

    def source_of(stage: Stage) -> ModelSource:
        model = pipeline.model_of(stage)
        return ModelSource(path=model_path_for(stage), uri=model.uri, revision=model.revision or "")

    answering = answering_stage(pipeline)
    parsers = {stage.name: stage.engine_args.tool_call_parser for stage in pipeline.spec.stages}
    return [
        StageConfig(
            pipeline=pipeline.metadata.name,
            stage=stage.name,
            component=stage.component,
            model=source_of(stage),
            system_prompt=stage.system_prompt,
            input=InputEdge(source=stage.inputs[0].source, mode=stage.inputs[0].mode) if stage.inputs else None,
            outputs=list(stage.outputs),
            downstream=[compile_edge(stage, reader) for reader in readers_of(pipeline, stage.name)],
            answering_stage=answering if answering in below(stage) else None,
            answering_tool_call_parser=parsers[answering] if answering in below(stage) else None,
            engine_args=stage.engine_args,
            extra_engine_args=stage.extra_engine_args,
            tensor_parallel_size=max(1, gpus_of(stage)),
            default_sampling=stage.default_sampling,
            limits=stage.limits,
            media=MediaLimits() if stage.inputs else pipeline.spec.media,
            timeouts=Timeouts(
                request=pipeline.spec.timeouts.request,
                step=stage.timeouts.step,
                queue=stage.timeouts.queue,
                prepare=stage.timeouts.prepare,
            ),
            listen=listen_for(stage),
        )
        for stage in order_stages(pipeline)
    ]
