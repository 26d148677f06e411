"""Rules on the graph of stages, in CEL.

All lists and texts are bounded. Otherwise the API server would refuse a rule because of its estimated cost.
"""

from __future__ import annotations

from typing import Final

from omni_proto.pipeline.rules.rule import Rule

MAX_JOINED_NAME: Final = 54
"""Maximum number of characters of PIPELINE-STAGE. The name of a Service is PIPELINE-STAGE-REVISION. -REVISION takes 8
characters, so the name has at most 62; Kubernetes allows 63."""

_NAMES = "self.stages.map(t, t.name)"
_IS_ENTRY = "!has(s.inputs) || size(s.inputs) == 0"
_ENTRIES = f"self.stages.filter(s, {_IS_ENTRY})"
_EXISTS = "self.stages.exists(t, t.name == i.from)"
_INPUTS_EXIST = f"self.stages.all(s, !has(s.inputs) || s.inputs.all(i, {_EXISTS}))"
_LOST = f"self.stages.filter(s, has(s.inputs) && s.inputs.exists(i, !{_EXISTS}))"
_RETURNS = "has(s.outputs) && size(s.outputs) > 0"
_IS_READ = "self.stages.exists(t, has(t.inputs) && t.inputs.exists(i, i.from == s.name))"
_IS_USED = f"({_RETURNS}) || {_IS_READ}"


def _ancestors(then: str) -> str:
    """Returns a CEL expression that evaluates `then` with two variables.

    n: the names of the stages. p0: for each stage, the index of the stage 16 edges above it; an entry counts as its own
    upstream stage. p0 is found by pointer doubling (1, 2, 4, 8, 16 edges), which is cheap enough for the API server
    with up to 16 stages in any order. CEL has no variables, so each one is the item of a mapped list of length 1.
    """
    inner = then
    for step in range(4):
        inner = f"[p{step + 1}.map(i, p{step + 1}[i])].map(p{step}, {inner})[0]"
    above = f"self.stages.map(s, {_IS_ENTRY} ? n.indexOf(s.name) : n.indexOf(s.inputs[0].from))"
    return f"[{_NAMES}].map(n, [{above}].map(p4, {inner})[0])[0]"


# There are at most 16 stages. If the edges above a stage do not lead to an entry, the stage 16 edges above it is part
# of a cycle. Every stage of a cycle is found in this way.
_ENTRY_ABOVE = _IS_ENTRY.replace("s.inputs", "self.stages[e].inputs")

_HEARS = "has(s.outputs) && s.outputs.exists(o, o == 'Transcript')"
_MISHEARD = f"self.stages.filter(s, {_HEARS} && !({_IS_ENTRY}))"

GRAPH_RULES: Final = (
    Rule(
        summary="exactly one stage has no inputs: the entry",
        rule=f"{_ENTRIES}.size() == 1",
        words="found %d entry stages: %s; exactly one stage, which reads the client's prompt, has no inputs; "
        "give the others inputs: [{from: STAGE}]",
        values=(f"{_ENTRIES}.size()", f"{_ENTRIES}.map(s, s.name)"),
        field=".stages",
    ),
    Rule(
        summary="stages read stages of this pipeline",
        rule=_INPUTS_EXIST,
        words="inputs of %s name %s, which are not stages of this pipeline; there are: %s",
        values=(f"{_LOST}.map(s, s.name)", f"{_LOST}.map(s, s.inputs[0].from)", _NAMES),
        field=".stages",
    ),
    Rule(
        summary="stages do not read one another in a circle",
        rule=f"!({_INPUTS_EXIST}) || {_ancestors(f'p0.all(e, {_ENTRY_ABOVE})')}",
        words="stages read one another in a circle: %s; let one of them read another stage",
        values=(_ancestors(f"n.filter(x, p0.exists(e, n[e] == x && !({_ENTRY_ABOVE})))"),),
        field=".stages",
    ),
    Rule(
        summary="a stage returns something to the client, or is read by a stage",
        rule=f"self.stages.all(s, {_IS_USED})",
        words="stages that return nothing and that no stage reads: %s; declare outputs: [Text] or [Audio], "
        "or remove them",
        values=(f"self.stages.filter(s, !({_IS_USED})).map(s, s.name)",),
        field=".stages",
    ),
    Rule(
        summary="only the entry, which hears the user, returns a Transcript",
        rule=f"{_MISHEARD}.size() == 0",
        words="stages %s return a Transcript, which is what the entry hears; declare outputs: [Text] there",
        values=(f"{_MISHEARD}.map(s, s.name)",),
        field=".stages",
    ),
)
"""Rules on spec."""

_TOO_LONG = f"size(self.metadata.name) + 1 + size(s.name) > {MAX_JOINED_NAME}"

OBJECT_RULES: Final = (
    Rule(
        summary=f"`metadata.name` and a stage's name have at most {MAX_JOINED_NAME - 1} characters together",
        rule=f"!self.spec.stages.exists(s, {_TOO_LONG})",
        words=f"metadata.name and a stage's name may have {MAX_JOINED_NAME - 1} characters together, to fit the name "
        "of a Service; shorten metadata.name, or the stages %s",
        values=(f"self.spec.stages.filter(s, {_TOO_LONG}).map(s, s.name)",),
    ),
)
"""Rules on the whole object. In metadata, Kubernetes lets them read only the name, and lets errors name no field."""
