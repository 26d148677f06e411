"""Checks a component's `ComponentFacts` against its stage file: input, outputs, downstream stages and GPUs."""

from __future__ import annotations

from collections.abc import Callable

from omni_proto.pipeline.components import ComponentFacts
from omni_proto.stage_config import EdgeMode, StageConfig
from omni_proto.tensors import TEXT
from omni_stage.errors import ConfigurationError


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
