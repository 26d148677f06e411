"""From a StageConfig to an engine: the registry's component over vLLM."""

from __future__ import annotations

from omni_proto.stage_config import EdgeMode, StageConfig
from omni_stage.engine.protocol import StageEngine
from omni_stage.errors import ConfigurationError
from omni_stage.models.component import Component, TakesStreams
from omni_stage.models.registry import get_component_factory
from omni_stage.vllm_adapter.env import apply_environment


def build_component(config: StageConfig) -> Component:
    """The stage's component, checked against what the configuration asks of it. Raises ConfigurationError."""
    component = get_component_factory(config.component)(config)
    missing = [output.value for output in config.outputs if output not in component.outputs]
    if missing:
        can = ", ".join(sorted(output.value for output in component.outputs)) or "nothing"
        raise ConfigurationError(
            f"stage {config.stage}: component {component.id} does not return {', '.join(missing)}; it returns {can}",
            field="outputs",
        )
    if config.input is not None and component.input_schema is None:
        raise ConfigurationError(
            f"stage {config.stage}: component {component.id} reads a prompt, so it has no input stage", field="input"
        )
    if config.input is None and component.input_schema is not None:
        raise ConfigurationError(
            f"stage {config.stage}: component {component.id} reads another stage; name it under inputs", field="input"
        )
    if config.input is not None and config.input.mode is EdgeMode.STREAM and not isinstance(component, TakesStreams):
        raise ConfigurationError(
            f"stage {config.stage}: component {component.id} cannot start before its input is complete; set the mode "
            "of its input to Full",
            field="input.mode",
        )
    if config.downstream and component.output_schema is None:
        raise ConfigurationError(
            f"stage {config.stage}: component {component.id} publishes no tensors, so no stage can read it",
            field="downstream",
        )
    return component


def build_stage_engine(config: StageConfig, in_process: bool = False) -> StageEngine:
    """The engine of a stage, not started. Raises ConfigurationError.

    in_process: the model runs in a thread of this process (tests, offline use), else in a process of its own.
    """
    apply_environment()
    # vLLM reads the environment when it is imported.
    from omni_stage.engine.vllm_engine import VllmStageEngine

    return VllmStageEngine(config, build_component(config), in_process=in_process)
