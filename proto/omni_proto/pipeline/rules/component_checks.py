"""Checks a typed pipeline against the facts of its components, without CEL, for the operator.

The API server and `omnipipe validate` make the same checks with the rules of components.py. The operator sees a spec
that breaks them only if an older CRD accepted it. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Final

from omni_proto.model_names import find_voice
from omni_proto.pipeline.compile import gpus_of, is_accelerator
from omni_proto.pipeline.components import (
    ComponentFacts,
    Objection,
    built_in_components,
    refuse_engine_args,
    refuse_sampling,
    refuse_timeouts,
)
from omni_proto.pipeline.problems import Problem
from omni_proto.pipeline.rules.components import list_edges
from omni_proto.pipeline.types.kubernetes import GPU_RESOURCES
from omni_proto.pipeline.types.resource import OmniPipeline, Stage
from omni_proto.stage_config import EdgeMode, Timeouts
from omni_proto.tensors import TEXT

_HINT: Final = "did you mean"
_SAME_FAMILY: Final = 0.5
"""Smallest similarity of two names of families that may be the same one."""


def check_components(pipeline: OmniPipeline) -> list[Problem]:
    """Returns the fields that built-in components refuse, in the order of the stages; empty if nothing is wrong."""
    facts = built_in_components()
    problems: list[Problem] = []
    for index, stage in enumerate(pipeline.spec.stages):
        if own := facts.get(stage.component):
            problems += _check_stage(pipeline, stage, f"spec.stages[{index}]", own, facts)
        problems += _check_edge(pipeline, stage, f"spec.stages[{index}]", facts)
    return problems


def list_warnings(pipeline: OmniPipeline) -> list[Problem]:
    """Returns a warning for each field that may be a mistake, but is right with some images of the user's own."""
    return [*list_unused_model(pipeline), *list_unknown_components(pipeline), *list_uncounted_devices(pipeline)]


def list_likely_mistakes(pipeline: OmniPipeline) -> list[Problem]:
    """Returns the warnings for the status: without components that resemble no built-in one, because a pipeline of the
    user's own family has them for good."""
    return [item for item in list_warnings(pipeline) if not item.field.endswith(".component") or _HINT in item.message]


def list_unused_model(pipeline: OmniPipeline) -> list[Problem]:
    """Returns a warning for a spec.model that no stage uses."""
    if pipeline.spec.model is None or any(stage.model is None for stage in pipeline.spec.stages):
        return []
    return [Problem("spec.model", "no stage uses it: every stage has a model of its own; remove it")]


def list_uncounted_devices(pipeline: OmniPipeline) -> list[Problem]:
    """Returns a warning for each stage with several devices that are no GPUs by name: together they count as one."""
    return [
        Problem(
            f"spec.stages[{index}].resources.limits[{name}]",
            f"the stage gets {count} devices, but they count as one (start limits, memory), and the tensor parallel "
            f"size stays 1; GPUs that are counted are {' and '.join(GPU_RESOURCES)}",
        )
        for index, stage in enumerate(pipeline.spec.stages)
        for name, count in stage.resources.limits.items()
        if is_accelerator(name) and name not in GPU_RESOURCES and str(count) != "1"
    ]


def list_unknown_components(pipeline: OmniPipeline) -> list[Problem]:
    """Returns a warning for each stage whose component is not built in: its image must contain the component."""
    known = list(built_in_components())
    return [
        Problem(f"spec.stages[{index}].component", _describe_unknown(stage.component, known))
        for index, stage in enumerate(pipeline.spec.stages)
        if stage.component not in known
    ]


def list_late_edges(pipeline: OmniPipeline) -> list[Problem]:
    """Returns a warning for each input without `mode` of a stage that could start on the first rows (ADR 0023)."""
    facts = built_in_components()
    return [
        Problem(
            f"spec.stages[{index}].inputs[0].mode",
            f"not set, so Full: stage {stage.name} starts when stage {edge.source} has ended, and audio comes late; "
            "set mode: Stream, or mode: Full if you need every sampling parameter or transformers' exact output",
        )
        for index, stage in enumerate(pipeline.spec.stages)
        for edge in stage.inputs
        if "mode" not in edge.model_fields_set and (own := facts.get(stage.component)) and own.streams_input
    ]


def list_unknown_voices(pipeline: OmniPipeline) -> list[Problem]:
    """Returns a warning for each alias of a voice that the published checkpoints lack, or that is itself a voice.

    A checkpoint of the user's own may have other voices, and so may components that are not built in.
    """
    facts = built_in_components()
    components = [facts.get(stage.component) for stage in pipeline.spec.stages]
    known = list(dict.fromkeys(voice for item in components if item for voice in item.voices))
    if not known or None in components:
        return []
    unused = [
        Problem(f"spec.aliases.voices[{alias}]", "is itself a voice, which takes precedence; remove the alias")
        for alias in pipeline.spec.aliases.voices
        if alias in known
    ]
    return unused + [
        Problem(
            f"spec.aliases.voices[{alias}]",
            f"{voice} is no voice of the published checkpoints, which have {', '.join(known)}; unless the checkpoint "
            f"has it, requests for {alias} are refused; name one of these",
        )
        for alias, voice in pipeline.spec.aliases.voices.items()
        if find_voice(voice, known) is None
    ]


def _resembles(family: str, known: str) -> bool:
    return difflib.SequenceMatcher(None, family, known).ratio() > _SAME_FAMILY


def _describe_unknown(component: str, known: list[str]) -> str:
    # A user's own family has stages of the usual names, such as acme/talker, and is no mistake.
    family, _, name = component.partition("/")
    related = [item for item in known if _resembles(family, item.partition("/")[0])]
    near = [item for item in known if item == f"{name}/{family}"] or difflib.get_close_matches(component, related, n=1)
    hint = f"{_HINT} {near[0]}?" if near else f"built in are {', '.join(known)}"
    return f"{component} is not built in; the stage's image must bring it, or the stage does not start; {hint}"


def _check_stage(
    pipeline: OmniPipeline, stage: Stage, path: str, own: ComponentFacts, facts: Mapping[str, ComponentFacts]
) -> Iterator[Problem]:
    if extra := [output.value for output in stage.outputs if output not in own.outputs]:
        can = ", ".join(output.value for output in own.outputs) or "nothing"
        yield Problem(
            f"{path}.outputs",
            f"component {own.id} cannot return {', '.join(extra)}; it can return {can}",
        )
    if stage.system_prompt is not None and not own.takes_system_prompt:
        yield Problem(
            f"{path}.systemPrompt",
            f"component {own.id} takes no system prompt; remove it, and give it in the request's chat",
        )
    if stage.inputs and own.reads is None:
        yield Problem(
            f"{path}.inputs", f"component {own.id} reads the client's prompt and no other stage; remove inputs"
        )
    if not stage.inputs and not own.is_entry:
        words = (
            f"component {own.id} cannot be the entry, because it reads another stage; add inputs; {list_edges(facts)}"
        )
        yield Problem(f"{path}.component", words)
    is_streamed = bool(stage.inputs) and stage.inputs[0].mode is EdgeMode.STREAM
    if is_streamed and own.reads is not None and not own.streams_input:
        yield Problem(f"{path}.inputs", f"component {own.id} cannot start before its input is complete; set mode: Full")
    if own.max_gpus is not None and (found := gpus_of(stage)) > own.max_gpus:
        yield Problem(
            f"{path}.resources.limits",
            f"component {own.id} can use {own.max_gpus} GPU; {found} are requested; lower resources.limits, and raise "
            "replicas for more throughput",
        )
    is_read = any(edge.source == stage.name for other in pipeline.spec.stages for edge in other.inputs)
    timeouts = Timeouts(step=stage.timeouts.step, queue=stage.timeouts.queue, prepare=stage.timeouts.prepare)
    sections: dict[str, list[Objection]] = {
        "engineArgs": refuse_engine_args(own, stage.engine_args, is_read=is_read),
        "defaultSampling": refuse_sampling(own, stage.default_sampling, is_streamed=is_streamed),
        "timeouts": refuse_timeouts(own, timeouts),
    }
    for section, objections in sections.items():
        for item in objections:
            yield Problem(f"{path}.{section}.{item.alias}", f"component {own.id}: {item.why}; {item.remedy}")


def _check_edge(
    pipeline: OmniPipeline, stage: Stage, path: str, facts: Mapping[str, ComponentFacts]
) -> Iterator[Problem]:
    for edge in stage.inputs:
        above = facts.get(pipeline.stage(edge.source).component)
        if above is None:
            continue
        own = facts.get(stage.component)
        reads = own.reads if own else None
        if above.publishes is None or (reads is not None and reads != above.publishes):
            published = "text" if above.publishes == TEXT else "other tensors" if above.publishes else "none"
            own_input = "reads text and " if reads == TEXT else ""
            words = f"{own_input}cannot read stage {edge.source}, which publishes {published}; {list_edges(facts)}"
            yield Problem(f"{path}.inputs[0].from", words)
