"""Checks a stage's StageConfig against the facts of its component, and builds its component and engine."""

from __future__ import annotations

import os
from collections.abc import Callable

from omni_proto.pipeline.components import ComponentFacts
from omni_proto.stage_config import EdgeMode, StageConfig
from omni_proto.tensors import TEXT
from omni_stage.engine.protocol import StageEngine
from omni_stage.errors import ConfigurationError
from omni_stage.models.component import Component
from omni_stage.models.registry import FamilyRegistry, installed_families
from omni_stage.vllm_adapter.process.env import apply_environment


def check_placement(
    facts: ComponentFacts, config: StageConfig, find_facts: Callable[[str], ComponentFacts | None]
) -> None:
    """Check that the component supports the stage's input, outputs, downstream stages and number of GPUs.

    Raises ConfigurationError.

    `find_facts` returns the facts of a component by its id; None if this environment does not have that component.
    """
    stage = f"stage {config.stage}: component {facts.id}"
    if config.input is not None and facts.reads is None:
        raise ConfigurationError(
            f"{stage} reads a prompt: it can only be the entry stage, without inputs", field="input"
        )
    if config.system_prompt is not None and not facts.takes_system_prompt:
        raise ConfigurationError(f"{stage} takes no system prompt; remove it", field="systemPrompt")
    if config.input is None and not facts.is_entry:
        raise ConfigurationError(
            f"{stage} reads another stage and needs an input; name that stage under inputs", field="input"
        )
    if config.input is not None and config.input.mode is EdgeMode.STREAM and not facts.streams_input:
        raise ConfigurationError(
            f"{stage} cannot start before its input is complete; set the mode of its input to Full",
            field="input.mode",
        )
    if facts.max_gpus is not None and config.tensor_parallel_size > facts.max_gpus:
        raise ConfigurationError(
            f"{stage} can use {facts.max_gpus} GPU, not {config.tensor_parallel_size}; lower resources.limits, and "
            "raise replicas for more throughput",
            field="tensorParallelSize",
        )
    missing = [output.value for output in config.outputs if output not in facts.outputs]
    if missing:
        can = ", ".join(sorted(output.value for output in facts.outputs)) or "nothing"
        raise ConfigurationError(f"{stage} does not return {', '.join(missing)}; it returns {can}", field="outputs")
    for edge in config.downstream:
        if facts.publishes is None:
            raise ConfigurationError(
                f"{stage} publishes no tensors, so stage {edge.stage} cannot read from it", field="downstream"
            )
        reader = find_facts(edge.component)
        if reader is not None and reader.reads != facts.publishes:
            reads = _name_edge(reader.reads) if reader.reads else "a prompt"
            raise ConfigurationError(
                f"{stage} publishes {_name_edge(facts.publishes)}, but component {reader.id} of stage {edge.stage} "
                f"reads {reads}; let stage {edge.stage} read another stage",
                field="downstream",
            )


def _name_edge(schema: str) -> str:
    return "text" if schema == TEXT else f"tensors {schema}"


def build_component(config: StageConfig) -> Component:
    """Returns the stage's component. Raises ConfigurationError if it does not fit its place in the pipeline."""
    families = installed_families()
    check_known_component(config, families)
    return families.factory(config.component)(config)


def check_known_component(config: StageConfig, families: FamilyRegistry | None = None) -> None:
    """Refuse a component that is unknown or does not fit its place, without importing it. Raises ConfigurationError."""
    known = families or installed_families()

    def find_facts(component_id: str) -> ComponentFacts | None:
        entry = known.find(component_id)
        return None if entry is None else entry.facts

    check_placement(known.component(config.component).facts, config, find_facts)


def needs_vllm(config: StageConfig) -> bool:
    """Returns whether vLLM runs the stage's component. Imports neither vLLM nor the component.

    Raises ConfigurationError if the component is unknown.
    """
    return not installed_families().component(config.component).engine


def build_stage_engine(config: StageConfig, in_process: bool = False, alone: bool = True) -> StageEngine:
    """Returns the engine of a stage, not started. Raises ConfigurationError.

    in_process: whether the model runs in a thread of this process (tests, offline use) instead of a process of its own.
    alone: whether no other engine runs in this process. If another one does, in_process has no effect on GPUs: vLLM
    0.32 has one workspace for each process (v1/worker/workspace.py), and torch one limit of GPU memory. A component
    that brings its own engine ignores in_process and alone.
    """
    families = installed_families()
    check_known_component(config, families)
    if (own := families.own_engine(config.component)) is not None:
        if config.extra_engine_args:
            raise ConfigurationError(
                f"extraEngineArgs are for vLLM, which does not run {config.component}; remove them",
                field="extraEngineArgs",
            )
        engine: StageEngine = own(config)
        return engine
    apply_environment()
    # vLLM reads the environment when it is imported.
    from vllm.platforms import current_platform

    from omni_stage.engine.vllm_engine import VllmStageEngine

    in_process = in_process and (alone or current_platform.is_cpu())
    if not in_process:
        # vLLM would fork by default. A forked process keeps the locks that other threads of this process hold.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    return VllmStageEngine(config, build_component(config), in_process=in_process)
