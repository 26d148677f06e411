"""Rules on components, in CEL, compiled from their facts. They refuse fields that a built-in component cannot support.

A component that is not built in may come with its own image. Nothing is known about it, so nothing is refused.
component_checks.py makes the same checks on a typed pipeline, for the operator, which has no CEL library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from omni_proto.pipeline.components import ComponentFacts, Refusal, When, built_in_components
from omni_proto.pipeline.rules.rule import Rule, quote
from omni_proto.pipeline.types.kubernetes import GPU_RESOURCES
from omni_proto.pipeline.types.resource import StageTimeouts
from omni_proto.stage_config import EngineArgs, Modality, SamplingDefaults
from omni_proto.tensors import TEXT


def list_edges(facts: Mapping[str, ComponentFacts]) -> str:
    """Returns a text that lists which built-in component reads which: "FAMILY/B reads FAMILY/A; ..."."""
    edges = [
        f"{item.id} reads {' or '.join(publishers_of(item.reads, facts))}"
        for item in facts.values()
        if item.reads not in (None, TEXT)
    ]
    readers = [item.id for item in facts.values() if item.reads == TEXT]
    if readers:
        edges.append(f"text is read by {', '.join(readers)} and published by {', '.join(publishers_of(TEXT, facts))}")
    return "; ".join(edges)


def publishers_of(schema: str | None, facts: Mapping[str, ComponentFacts]) -> list[str]:
    """Returns the ids of the built-in components that publish tensors of the schema."""
    return [item.id for item in facts.values() if schema is not None and item.publishes == schema]


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(quote, texts))}]"


def _has_input(stage: str) -> str:
    return f"(has({stage}.inputs) && size({stage}.inputs) > 0)"


@dataclass(frozen=True, slots=True)
class _Section:
    """An object of a stage whose fields a component may refuse."""

    name: str
    model: type[BaseModel]
    refusals: str
    """The field of ComponentFacts that lists the refusals."""

    def given(self, refusal: Refusal, stage: str) -> str:
        """Returns the CEL expression that is true if the stage sets the field to a refused value."""
        path = f"{stage}.{self.name}.{to_camel(refusal.field)}"
        annotation = str(self.model.model_fields[refusal.field].annotation)
        is_float = "float" in annotation
        parts = [f"has({stage}.{self.name})", f"has({path})"]
        if refusal.allows_empty:
            empty = f"{path} != {'0.0' if is_float else '0'}"
            parts.append(path if "bool" in annotation else f"size({path}) > 0" if "list" in annotation else empty)
        bounds = [(refusal.minimum, "<"), (refusal.maximum, ">")]
        wrong = [f"{path} {sign} {bound if is_float else int(bound)}" for bound, sign in bounds if bound is not None]
        if wrong:
            parts.append(f"({' || '.join(wrong)})")
        return " && ".join(parts)


_SECTIONS: Final = (
    _Section("engineArgs", EngineArgs, "refused_engine_args"),
    _Section("defaultSampling", SamplingDefaults, "refused_sampling"),
    _Section("timeouts", StageTimeouts, "refused_timeouts"),
)


def _merge(section: _Section, facts: Mapping[str, ComponentFacts], whens: Sequence[When]) -> list[_Merged]:
    """Returns the refusals of a section. Equal refusals of several components are merged, and so are fields with
    equal reasons.
    """
    components: dict[str, tuple[Refusal, list[str]]] = {}
    for item in facts.values():
        for refusal in getattr(item, section.refusals):
            if refusal.when in whens:
                components.setdefault(refusal.model_dump_json(), (refusal, []))[1].append(item.id)
    merged: dict[Any, _Merged] = {}
    for refusal, ids in components.values():
        key = (tuple(ids), refusal.why, refusal.remedy, refusal.when)
        merged.setdefault(key, _Merged(tuple(ids), [])).refusals.append(refusal)
    return list(merged.values())


@dataclass(frozen=True, slots=True)
class _Merged:
    """Refusals of some components for one reason."""

    components: tuple[str, ...]
    refusals: list[Refusal]

    def given(self, section: _Section, stage: str) -> str:
        return " || ".join(f"({section.given(refusal, stage)})" for refusal in self.refusals)

    @property
    def fields(self) -> list[str]:
        """The fields as a resource spells them."""
        return [to_camel(item.field) for item in self.refusals]

    def found(self, section: _Section, stage: str) -> tuple[str, str]:
        """Returns a text with %s, and the CEL expression that fills it in: a field's value, or the names of several
        fields."""
        if len(self.fields) == 1:
            return f"{self.fields[0]} %s", f"{stage}.{section.name}.{self.fields[0]}"
        choices = [(quote(to_camel(item.field)), section.given(item, stage)) for item in self.refusals]
        chosen = " || ".join(f"(n == {name} && {given})" for name, given in choices)
        return "%s", f"{_list(self.fields)}.filter(n, {chosen})"


def stage_rules(facts: Mapping[str, ComponentFacts]) -> tuple[Rule, ...]:
    """Returns the rules that check each stage separately."""
    return (*_shape_rules(facts), *_gpu_rules(facts), *_refusal_rules(facts))


def _shape_rules(facts: Mapping[str, ComponentFacts]) -> Iterable[Rule]:
    returns = " || ".join(
        f"(o == {quote(output)} && self.component in {_list(i.id for i in facts.values() if output in i.outputs)})"
        for output in Modality
    )
    yield Rule(
        summary="`outputs` are what a built-in component can return",
        rule=f"!has(self.outputs) || !(self.component in {_list(facts)}) || self.outputs.all(o, {returns})",
        words="component %s cannot return %s; it can return %s: leave out the rest, or name another component",
        values=(
            "self.component",
            f"self.outputs.filter(o, !({returns}))",
            f"{_list(Modality)}.filter(o, {returns})",
        ),
        field=".outputs",
    )
    unprompted = _list(item.id for item in facts.values() if not item.takes_system_prompt)
    yield Rule(
        summary="`systemPrompt` is for components that take one",
        rule=f"!has(self.systemPrompt) || !(self.component in {unprompted})",
        words="component %s takes no system prompt; remove it, and give it in the request's chat",
        values=("self.component",),
        field=".systemPrompt",
    )
    entries = _list(item.id for item in facts.values() if item.reads is None)
    yield Rule(
        summary="a built-in component that reads the client's prompt has no inputs",
        rule=f"!{_has_input('self')} || !(self.component in {entries})",
        words="component %s reads the client's prompt and no other stage; remove inputs, or name another component",
        values=("self.component",),
        field=".inputs",
    )
    readers = _list(item.id for item in facts.values() if not item.is_entry)
    yield Rule(
        summary="a built-in component that reads another stage has inputs",
        rule=f"{_has_input('self')} || !(self.component in {readers})",
        words=f"component %s cannot be the entry, because it reads another stage; add inputs: [{{from: STAGE}}]; "
        f"{list_edges(facts)}",
        values=("self.component",),
        field=".component",
    )
    whole = [item.id for item in facts.values() if item.reads is not None and not item.streams_input]
    if whole:
        yield Rule(
            summary="mode Stream is for components that can start before their input is complete",
            rule=f"!(self.component in {_list(whole)}) || !{_has_input('self')} || self.inputs[0].mode != 'Stream'",
            words="component %s cannot start before its input is complete; set mode: Full",
            values=("self.component",),
            field=".inputs",
        )


def _gpu_rules(facts: Mapping[str, ComponentFacts]) -> Iterable[Rule]:
    for maximum in sorted({item.max_gpus for item in facts.values() if item.max_gpus is not None}):
        ids = [item.id for item in facts.values() if item.max_gpus == maximum]
        limits = "self.resources.limits"
        # Other rules refuse counts that are no whole numbers.
        is_above = f"k in {_list(GPU_RESOURCES)} && string({limits}[k]).matches('^[0-9]+$') && int(string({limits}[k]))"
        too_many = f"{limits}.filter(k, {is_above} > {maximum})"
        yield Rule(
            summary=f"at most {maximum} GPU for {', '.join(ids)}, which cannot use more",
            rule=f"!(self.component in {_list(ids)}) || !has(self.resources) || !has({limits}) || "
            f"size({too_many}) == 0",
            words=f"component %s can use {maximum} GPU; %s are requested; lower resources.limits, and raise replicas "
            "for more throughput",
            values=("self.component", f"{too_many}.map(k, string({limits}[k]) + ' of ' + k)"),
            field=".resources",
        )


def _refusal_rules(facts: Mapping[str, ComponentFacts]) -> Iterable[Rule]:
    for section in _SECTIONS:
        for merged in _merge(section, facts, (When.ALWAYS, When.STREAMED)):
            first = merged.refusals[0]
            fields = ", ".join(f"`{name}`" for name in merged.fields)
            denied = "" if first.minimum is not None or first.maximum is not None else "no "
            found, value = merged.found(section, "self")
            streamed = f"{_has_input('self')} && self.inputs[0].mode == 'Stream'"
            when = "" if first.when is When.ALWAYS else f" && {streamed}"
            mode = "" if first.when is When.ALWAYS else " with an input of mode Stream"
            wrong = f"self.component in {_list(merged.components)}{when} && ({merged.given(section, 'self')})"
            yield Rule(
                summary=f"`{section.name}` of {', '.join(merged.components)}{mode}: {denied}{fields}; {first.why}",
                rule=f"!({wrong})",
                words=f"{found} of component %s: {first.why}; {first.remedy}",
                values=(value, "self.component"),
                field=f".{section.name}",
            )


def spec_rules(facts: Mapping[str, ComponentFacts]) -> tuple[Rule, ...]:
    """Returns the rules that check stages together with the stages that they read."""
    return (_edge_rule(facts), *_read_rules(facts))


def _edge_rule(facts: Mapping[str, ComponentFacts]) -> Rule:
    schemas = sorted({item.reads for item in facts.values() if item.reads})
    clauses = [f"t.component in {_list(item.id for item in facts.values() if item.publishes is None)}"]
    for schema in schemas:
        readers = _list(item.id for item in facts.values() if item.reads == schema)
        others = _list(item.id for item in facts.values() if item.publishes not in (None, schema))
        clauses.append(f"(s.component in {readers} && t.component in {others})")
    wrong = f"{_has_input('s')} && self.stages.exists(t, t.name == s.inputs[0].from && ({' || '.join(clauses)}))"
    return Rule(
        summary="a stage and its upstream stage, if both components are built in, use the same tensors on their edge",
        rule=f"!self.stages.exists(s, {wrong})",
        words=f"stages %s cannot read %s, which publish other tensors or none; {list_edges(facts)}",
        values=(
            f"self.stages.filter(s, {wrong}).map(s, s.name)",
            f"self.stages.filter(s, {wrong}).map(s, s.inputs[0].from)",
        ),
        field=".stages",
    )


def _read_rules(facts: Mapping[str, ComponentFacts]) -> Iterable[Rule]:
    is_read = "self.stages.exists(t, has(t.inputs) && t.inputs.exists(i, i.from == s.name))"
    for section in _SECTIONS:
        for merged in _merge(section, facts, (When.READ,)):
            first = merged.refusals[0]
            fields = ", ".join(merged.fields)
            wrong = f"s.component in {_list(merged.components)} && ({merged.given(section, 's')}) && {is_read}"
            yield Rule(
                summary=f"`{section.name}` of {', '.join(merged.components)}, where another stage reads it: no "
                f"`{fields}`; {first.why}",
                rule=f"!self.stages.exists(s, {wrong})",
                words=f"{section.name}.{fields} of stages %s: {first.why}; {first.remedy}",
                values=(f"self.stages.filter(s, {wrong}).map(s, s.name)",),
                field=".stages",
            )


STAGE_COMPONENT_RULES: Final = stage_rules(built_in_components())
"""Rules on a stage."""
SPEC_COMPONENT_RULES: Final = spec_rules(built_in_components())
"""Rules on spec."""
