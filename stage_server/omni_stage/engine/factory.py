"""Builds a stage's component and engine from its StageConfig."""

from __future__ import annotations

import os

from omni_proto.pipeline.components import ComponentFacts
from omni_proto.stage_config import StageConfig
from omni_stage.engine.protocol import StageEngine
from omni_stage.errors import ConfigurationError
from omni_stage.models.component import Component
from omni_stage.models.placement import check_placement
from omni_stage.models.registry import FamilyRegistry, installed_families
from omni_stage.vllm_adapter.process.env import apply_environment


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
