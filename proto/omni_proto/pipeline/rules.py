"""The rules of the API that types cannot say, in CEL: the API server evaluates them, and `omnipipe` the very same.

Each has a message that names the offender and says what to do. schema.py puts them into the CRD, beside what the types
say. Messages are made by `format`, whose cost the API server counts once; `+` and `join` go beyond what it allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel

from omni_proto.pipeline import kubernetes as k8s
from omni_proto.pipeline import resource as api
from omni_proto.pipeline.forms import FORMS
from omni_proto.pipeline.graph_rules import GRAPH_RULES
from omni_proto.pipeline.rule import Rule, matches, quote
from omni_proto.stage_config import COMPONENT_PATTERN, STAGE_NAME_PATTERN, EngineArgs, SamplingDefaults

MAX_GPUS: Final = 64
"""Most GPUs of one stage: the largest tensor parallel size."""

TEXT_RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    **{
        pattern: (matches(pattern, FORMS[pattern]),)
        for pattern in (api.URI_PATTERN, api.IMAGE_PATTERN, STAGE_NAME_PATTERN, COMPONENT_PATTERN)
    },
    api.NAME_PATTERN: (
        matches(api.NAME_PATTERN, FORMS[api.NAME_PATTERN]),
        Rule(
            summary="does not end with -headless: another pipeline's Service has that name",
            rule="!self.endsWith('-headless')",
            words="is the name of another pipeline's headless Service; give one that does not end with -headless",
        ),
    ),
}
"""By pattern: texts whose form is better told in words than by the pattern."""


def _only_hf(field: str) -> Rule:
    return Rule(
        summary=f"`{field}` is for hf:// only",
        rule=f"!has(self.{field}) || self.uri.startsWith('hf://')",
        words=f"{field} has no meaning with %s; remove it, or use an hf:// uri",
        values=("self.uri",),
        field=f".{field}",
    )


_MODEL = (
    Rule(
        summary="`uri` stays below its root: no `..` in its path",
        rule="!self.uri.matches('/[.][.](/|$)')",
        words="%s leaves its root through ..; give the path without it",
        values=("self.uri",),
        field=".uri",
    ),
    _only_hf("revision"),
    _only_hf("tokenSecretRef"),
    _only_hf("cache"),
)

_GPU = quote(k8s.GPU_RESOURCE)
_GPU_LIMIT, _GPU_REQUEST = f"string(self.limits[{_GPU}])", f"string(self.requests[{_GPU}])"
_FITS = (
    f"k == {_GPU} || !(k in self.limits) || "
    "quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0"
)
_RESOURCES = (
    Rule(
        summary=f"the GPU limit is a whole number from 1 to {MAX_GPUS}; stages on the CPU leave it out",
        rule=f"!has(self.limits) || !({_GPU} in self.limits) || {_GPU_LIMIT}.matches('^([1-9]|[1-5][0-9]|6[0-4])$')",
        words=f"%s GPUs are set; give a whole number from 1 to {MAX_GPUS}, or leave {k8s.GPU_RESOURCE} out to "
        "run on the CPU",
        values=(_GPU_LIMIT,),
        field=".limits",
    ),
    Rule(
        summary="a GPU request equals the GPU limit",
        rule=f"!has(self.requests) || !({_GPU} in self.requests) || "
        f"(has(self.limits) && {_GPU} in self.limits && {_GPU_LIMIT} == {_GPU_REQUEST})",
        words=f"%s GPUs are requested, which is not the limit; remove {k8s.GPU_RESOURCE} from requests, the limit is "
        "enough",
        values=(_GPU_REQUEST,),
        field=".requests",
    ),
    Rule(
        summary="requests are at most the limits",
        rule=f"!has(self.requests) || !has(self.limits) || self.requests.all(k, {_FITS})",
        words="requests are above the limits: %s; lower them, or raise the limits",
        values=(f"self.requests.filter(k, !({_FITS}))",),
        field=".requests",
    ),
)

_RESERVED = "k.matches('^([-a-z0-9.]+[.])?(omnipipeline[.]io|kubernetes[.]io|k8s[.]io)/')"


def _not_reserved(field: str, what: str) -> Rule:
    return Rule(
        summary=f"`{field}` has no key of the domains omnipipeline.io, kubernetes.io and k8s.io",
        rule=f"!has(self.{field}) || !self.{field}.exists(k, {_RESERVED})",
        words=f"{what} of the domains omnipipeline.io, kubernetes.io and k8s.io are reserved: %s; use a domain of your "
        "own",
        values=(f"self.{field}.filter(k, {_RESERVED})",),
        field=f".{field}",
    )


_POD_SETTINGS = (_not_reserved("podLabels", "labels"), _not_reserved("podAnnotations", "annotations"))

_TOLERATION = (
    Rule(
        summary="`key` is missing with operator Exists only",
        rule="has(self.key) || self.operator == 'Exists'",
        words="key is missing; name the taint's key, or use operator: Exists for every taint",
    ),
    Rule(
        summary="`value` is for operator Equal only",
        rule="!has(self.value) || self.value == '' || self.operator == 'Equal'",
        words="value %s has no meaning with operator Exists; remove it",
        values=("self.value",),
        field=".value",
    ),
    Rule(
        summary="`tolerationSeconds` is for effect NoExecute only",
        rule="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        words="tolerationSeconds needs effect: NoExecute; set this effect, or remove tolerationSeconds",
        field=".tolerationSeconds",
    ),
)

_TAKES_NONE = "self.operator in ['Exists', 'DoesNotExist']"
_VALUES = Rule(
    summary="`values` go with In and NotIn, and are absent with Exists and DoesNotExist",
    rule=f"({_TAKES_NONE}) == (!has(self.values) || size(self.values) == 0)",
    words="operator %s of key %s needs %s",
    values=(
        "self.operator",
        "self.key",
        f"{_TAKES_NONE} ? 'no values; remove them' : 'values; add at least one'",
    ),
    field=".values",
)
_NUMBER = Rule(
    summary="Gt and Lt compare with one whole number",
    rule="!(self.operator in ['Gt', 'Lt']) || "
    "(has(self.values) && size(self.values) == 1 && self.values[0].matches('^[0-9]{1,18}$'))",
    words="operator %s of key %s compares with one whole number; give values: [NUMBER]",
    values=("self.operator", "self.key"),
    field=".values",
)
_NODE_FIELD = "f.key == 'metadata.name' && f.operator in ['In', 'NotIn'] && has(f.values) && size(f.values) == 1"
_NODE_TERM = Rule(
    summary="`matchFields` knows the field metadata.name, with operator In or NotIn and one value",
    rule=f"!has(self.matchFields) || self.matchFields.all(f, {_NODE_FIELD})",
    words="wrong conditions on %s; the one field is metadata.name, with operator In or NotIn and one value",
    values=(f"self.matchFields.filter(f, !({_NODE_FIELD})).map(f, f.key)",),
    field=".matchFields",
)

_ENGINE_ARGS = (
    Rule(
        summary="`maxNumBatchedTokens` is at least `maxNumSeqs`",
        rule="!has(self.maxNumBatchedTokens) || !has(self.maxNumSeqs) || self.maxNumBatchedTokens >= self.maxNumSeqs",
        words="maxNumBatchedTokens (%d) is below maxNumSeqs (%d); raise it, every sequence needs a token a step",
        values=("self.maxNumBatchedTokens", "self.maxNumSeqs"),
        field=".maxNumBatchedTokens",
    ),
)

_SAMPLING = Rule(
    summary="`minTokens` is at most `maxTokens`",
    rule="!has(self.minTokens) || !has(self.maxTokens) || self.minTokens <= self.maxTokens",
    words="minTokens (%d) is above maxTokens (%d); lower it",
    values=("self.minTokens", "self.maxTokens"),
    field=".minTokens",
)

_ROLLOUT = Rule(
    summary="`maxSurge` and `maxUnavailable` are not both 0",
    rule="!((self.maxSurge == 0 || self.maxSurge == '0%') && "
    "(self.maxUnavailable == 0 || self.maxUnavailable == '0%'))",
    words="maxSurge and maxUnavailable are both 0, so no pod could ever be replaced; raise one",
)

RULES: Final[Mapping[type[BaseModel], tuple[Rule, ...]]] = {
    api.PipelineSpec: GRAPH_RULES,
    api.Model: _MODEL,
    api.PodSettings: _POD_SETTINGS,
    api.Stage: _POD_SETTINGS,
    api.Rollout: (_ROLLOUT,),
    k8s.Resources: _RESOURCES,
    k8s.Toleration: _TOLERATION,
    k8s.NodeSelectorTerm: (_NODE_TERM,),
    k8s.NodeSelectorRequirement: (_VALUES, _NUMBER),
    k8s.LabelSelectorRequirement: (_VALUES,),
    EngineArgs: _ENGINE_ARGS,
    SamplingDefaults: (_SAMPLING,),
}
"""By the type whose values they are about."""
