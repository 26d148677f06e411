"""The rules of the API that types cannot express, in CEL. The API server and `omnipipe` evaluate the same rules.

Each has a message that says what is wrong and what to do. crd/schema.py adds them to the CRD. Messages are built
with `format`, whose cost the API server counts once; `+` and `join` would exceed its cost limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pydantic import BaseModel

from omni_proto.pipeline.rules.components import SPEC_COMPONENT_RULES, STAGE_COMPONENT_RULES
from omni_proto.pipeline.rules.entry import ENTRY_ROUTE_RULES, ENTRY_RULES, ENTRY_SERVICE_RULES
from omni_proto.pipeline.rules.graph import GRAPH_RULES
from omni_proto.pipeline.rules.pods import (
    BUDGET_RULES,
    CLAIM_RULES,
    ENV_FROM_RULES,
    ENV_SOURCE_RULES,
    ENV_VAR_RULES,
    KEY_PATH_RULES,
    MOUNT_RULES,
    SHM_RULE,
    SHM_SIZE_RULE,
    SPEC_POD_RULES,
    VOLUME_RULES,
)
from omni_proto.pipeline.rules.resources import (
    LIMITS_RULES,
    MEDIA_BUDGET_RULES,
    RESOURCE_RULES,
    STAGE_BUDGET_RULES,
)
from omni_proto.pipeline.rules.rule import Rule, matches, quote
from omni_proto.pipeline.rules.scaling import OBJECTIVES_RULE, REPLICAS_RULE, SCALING_RULES, ZERO_RULE
from omni_proto.pipeline.types import entry, kubernetes as k8s, pods, resource as api, scaling
from omni_proto.pipeline.types.forms import FORMS
from omni_proto.stage_config import (
    COMPONENT_PATTERN,
    STAGE_NAME_PATTERN,
    EngineArgs,
    Limits,
    SamplingDefaults,
    extra_args,
)

_URI_HINT: Final = (
    "self.matches('^hf://[^/:@]+/[^:@]+[:@]') ? '; give what follows the name as revision' "
    ": self.matches('^(hf|pvc|s3|gs|az|oci)://.*/$') ? '; remove the slash at its end' : "
    "self.contains(' ') ? '; remove the space' : "
    f"self.matches({quote('^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$')}) || self.startsWith('http') "
    "|| self.startsWith('huggingface.co/') "
    "? '; a repository of the Hugging Face hub is hf://ORG/NAME' "
    ": self.matches('^(S3|s3[an]|gcs|GS|abfss?|wasbs?|azure|docker|registry|HF)://') "
    "? '; did you mean hf://, s3://, gs://, az:// or oci://?' "
    f": self.matches({quote('^[a-z][a-z0-9]*://')}) && !self.matches({quote('^(hf|pvc|file|s3|gs|az|oci)://')}) "
    "? '; download the checkpoint to a volume and name that: pvc://CLAIM/PATH' "
    ": self.matches('^/') || self.matches('^file:') ? '; a directory in the image is file:///PATH' : ''"
)
"""A hint at what the author of a wrong uri most likely wants."""

TEXT_RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    **{
        pattern: (matches(pattern, FORMS[pattern]),)
        for pattern in (
            k8s.IMAGE_PATTERN,
            api.REVISION_PATTERN,
            api.OTLP_PATTERN,
            STAGE_NAME_PATTERN,
            COMPONENT_PATTERN,
        )
    },
    api.URI_PATTERN: (
        Rule(
            summary=f"is {FORMS[api.URI_PATTERN]}",
            rule=f"self.matches({quote(api.URI_PATTERN)})",
            words=f"must be {FORMS[api.URI_PATTERN]}; found %s%s",
            values=("self", _URI_HINT),
            fallback=f"must be {FORMS[api.URI_PATTERN]}",
        ),
    ),
    api.NAME_PATTERN: (
        matches(api.NAME_PATTERN, FORMS[api.NAME_PATTERN]),
        Rule(
            summary="does not end with -headless, because another pipeline's headless Service can have that name",
            rule="!self.endsWith('-headless')",
            words="is the name of another pipeline's headless Service; give one that does not end with -headless",
        ),
    ),
}
"""Rules that replace a pattern in the CRD, because words explain the form better than the pattern."""


def _only(field: str, pattern: str, kinds: str) -> Rule:
    return Rule(
        summary=f"`{field}` is for {kinds} only",
        rule=f"!has(self.{field}) || self.uri.matches({quote(pattern)})",
        words=f"{field} has no meaning with %s; remove it, or use a uri of {kinds}",
        values=("self.uri",),
        field=f".{field}",
    )


_DOWNLOADS: Final = "hf://, s3://, gs://, az:// or oci://"
_NO_REPOSITORY: Final = r"^hf://(([^/]*/)?[^/]*(--|[.][.]|[^/]{97})|[^/]*/[^/]*[.]git(/|$))"

_MODEL = (
    Rule(
        summary="`uri` stays below its root: no `..` in its path",
        rule="!self.uri.matches('/[.][.](/|$)')",
        words="%s leaves its root through ..; give the path without it",
        values=("self.uri",),
        field=".uri",
    ),
    Rule(
        summary="the name of an hf:// repository has at most 96 characters in each part, neither `--` nor `..`, and "
        "does not end with .git",
        rule=f"!self.uri.matches({quote(_NO_REPOSITORY)})",
        words="%s is no name that the Hugging Face hub allows; give the repository's name as its page shows it",
        values=("self.uri",),
        field=".uri",
    ),
    _only("revision", "^hf://", "hf://"),
    _only("tokenSecretRef", api.DOWNLOAD_PATTERN, _DOWNLOADS),
    _only("cache", api.DOWNLOAD_PATTERN, _DOWNLOADS),
)

_EACH_HAS_A_MODEL = Rule(
    summary="`model` may be missing only if every stage has a `model` of its own",
    rule="has(self.model) || self.stages.all(s, has(s.model))",
    words="is missing, and stages %s have no model of their own; give spec.model, or give each of them a model",
    values=("self.stages.filter(s, !has(s.model)).map(s, s.name)",),
    field=".model",
)

_RESERVED = "k.matches('^([-a-z0-9.]+[.])?(omnipipeline[.]io|kubernetes[.]io|k8s[.]io)/')"
_EVICTION: Final = ("cluster-autoscaler.kubernetes.io", "descheduler.alpha.kubernetes.io")
"""Annotations of these domains are for users: they decide whether a pod may be moved or its node removed. Other
annotations of kubernetes.io could weaken the pod's security."""


def _not_reserved(field: str, what: str, but: tuple[str, ...] = ()) -> Rule:
    reserved = " && ".join([_RESERVED, *(f"!k.startsWith('{domain}/')" for domain in but)])
    return Rule(
        summary=f"`{field}` has no key of the domains omnipipeline.io, kubernetes.io and k8s.io"
        + (f", except {' and '.join(but)}" if but else ""),
        rule=f"!has(self.{field}) || !self.{field}.exists(k, {reserved})",
        words=f"{what} of the domains omnipipeline.io, kubernetes.io and k8s.io are reserved: %s; use a domain of your "
        "own",
        values=(f"self.{field}.filter(k, {reserved})",),
        field=f".{field}",
    )


_POD_SETTINGS = (
    _not_reserved("podLabels", "labels"),
    _not_reserved("podAnnotations", "annotations", but=_EVICTION),
    SHM_SIZE_RULE,
)

_TOLERATION = (
    Rule(
        summary="`key` may be missing only with operator Exists",
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
    summary="`values` are not allowed with Exists and DoesNotExist, and required with all other operators",
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
    summary="`matchFields` may name only the field metadata.name, with operator In or NotIn and one value",
    rule=f"!has(self.matchFields) || self.matchFields.all(f, {_NODE_FIELD})",
    words="wrong conditions on %s; the only field is metadata.name, with operator In or NotIn and one value",
    values=(f"self.matchFields.filter(f, !({_NODE_FIELD})).map(f, f.key)",),
    field=".matchFields",
)

_NODE_TERM_SAYS = Rule(
    summary="a term has a condition",
    rule="(has(self.matchExpressions) && size(self.matchExpressions) > 0) || "
    "(has(self.matchFields) && size(self.matchFields) > 0)",
    words="a term without conditions matches no node; add matchExpressions, or remove the term",
)

_ENGINE_ARGS = (
    Rule(
        summary="`dtype` float32 excludes quantization awq, gptq and fp8",
        rule="!has(self.dtype) || self.dtype != 'float32' || !has(self.quantization) || "
        "!(self.quantization in ['awq', 'gptq', 'fp8'])",
        words="quantization %s computes in float16 or bfloat16, not in float32; give one of these, or leave dtype out",
        values=("self.quantization",),
        field=".dtype",
    ),
    Rule(
        summary="`maxNumBatchedTokens` is at least `maxNumSeqs`",
        rule="!has(self.maxNumBatchedTokens) || !has(self.maxNumSeqs) || self.maxNumBatchedTokens >= self.maxNumSeqs",
        words="maxNumBatchedTokens (%d) is below maxNumSeqs (%d); raise it: every sequence needs a token in each step",
        values=("self.maxNumBatchedTokens", "self.maxNumSeqs"),
        field=".maxNumBatchedTokens",
    ),
)

_EXTRA = "self.extraEngineArgs"
_EXTRA_KINDS: Final = (
    (extra_args.WHOLE, "^[0-9]{1,9}$", "a whole number"),
    (extra_args.NUMBERS, "^[0-9]{1,9}([.][0-9]{1,9})?$", "a number"),
    (extra_args.SWITCHES, "^(true|false)$", '"true" or "false", in quotes'),
)


def _names(names: Iterable[str]) -> str:
    return f"[{', '.join(map(quote, names))}]"


def _extra_rules() -> Iterator[Rule]:
    """Yields the rules on extraEngineArgs: those of parse_extra_arg."""
    unknown = f"!(k in {_names(extra_args.ALLOWED)})"
    denied = "; ".join(f"those that {why}: {', '.join(names)}" for why, names in extra_args.DENIED.items())
    yield Rule(
        summary=f"`extraEngineArgs` names only {', '.join(extra_args.ALLOWED)}. Refused are, among others, {denied}",
        rule=f"!has({_EXTRA}) || !{_EXTRA}.exists(k, {unknown})",
        words=f"arguments that may not be given: %s; allowed are {', '.join(extra_args.ALLOWED)}",
        values=(f"{_EXTRA}.filter(k, {unknown})",),
        field=".extraEngineArgs",
        fallback="names an argument of vLLM that may not be given; omnipipe validate lists those that may",
    )
    for names, pattern, form in _EXTRA_KINDS:
        wrong = f"k in {_names(names)} && !string({_EXTRA}[k]).matches({quote(pattern)})"
        yield Rule(
            summary=f"`extraEngineArgs` {', '.join(names)}: {form}",
            rule=f"!has({_EXTRA}) || !{_EXTRA}.exists(k, {wrong})",
            words=f"%s must be {form}",
            values=(f"{_EXTRA}.filter(k, {wrong})",),
            field=".extraEngineArgs",
        )


_SAMPLING = Rule(
    summary="`minTokens` is at most `maxTokens`",
    rule="!has(self.minTokens) || !has(self.maxTokens) || self.minTokens <= self.maxTokens",
    words="minTokens (%d) is above maxTokens (%d); lower it",
    values=("self.minTokens", "self.maxTokens"),
    field=".minTokens",
)

_STAGE_TOKENS = Rule(
    summary="`defaultSampling.minTokens` is below `engineArgs.maxModelLen`, which also counts the prompt",
    rule="!has(self.defaultSampling) || !has(self.defaultSampling.minTokens) || !has(self.engineArgs) || "
    "!has(self.engineArgs.maxModelLen) || self.defaultSampling.minTokens < self.engineArgs.maxModelLen",
    words="minTokens (%d) must be below maxModelLen (%d), which also counts the prompt; lower it",
    values=("self.defaultSampling.minTokens", "self.engineArgs.maxModelLen"),
    field=".defaultSampling.minTokens",
)

_ROLES = Rule(
    summary="`outputs` are not both Text, the answer, and Transcript, what the user said",
    rule="!has(self.outputs) || !(self.outputs.exists(o, o == 'Text') && self.outputs.exists(o, o == 'Transcript'))",
    words="a stage's text is either the answer or the transcript; leave Text or Transcript out",
    field=".outputs",
)

_ROLLOUT = Rule(
    summary="`maxSurge` and `maxUnavailable` are not both 0",
    rule="!((self.maxSurge == 0 || self.maxSurge == '0%') && "
    "(self.maxUnavailable == 0 || self.maxUnavailable == '0%'))",
    words="maxSurge and maxUnavailable are both 0, so no pod could ever be replaced; raise one",
)

_VOICES = Rule(
    summary="`aliases.voices` need a stage that returns Audio",
    rule="!has(self.aliases) || !has(self.aliases.voices) || size(self.aliases.voices) == 0 || "
    "self.stages.exists(s, has(s.outputs) && s.outputs.exists(o, o == 'Audio'))",
    words="no stage returns Audio, so there are no voices; remove aliases.voices, or declare outputs: [Audio]",
    field=".aliases.voices",
)

RULES: Final[Mapping[type[BaseModel], tuple[Rule, ...]]] = {
    api.PipelineSpec: (
        *GRAPH_RULES,
        *SPEC_POD_RULES,
        *MEDIA_BUDGET_RULES,
        *SPEC_COMPONENT_RULES,
        _VOICES,
        _EACH_HAS_A_MODEL,
        ZERO_RULE,
    ),
    api.Model: _MODEL,
    entry.Entry: ENTRY_RULES,
    entry.EntryService: ENTRY_SERVICE_RULES,
    entry.EntryRoute: ENTRY_ROUTE_RULES,
    pods.PodSettings: _POD_SETTINGS,
    pods.EnvVar: ENV_VAR_RULES,
    pods.EnvVarSource: ENV_SOURCE_RULES,
    pods.EnvFromSource: ENV_FROM_RULES,
    pods.KeyToPath: KEY_PATH_RULES,
    pods.Volume: VOLUME_RULES,
    pods.VolumeMount: MOUNT_RULES,
    pods.PodResourceClaim: CLAIM_RULES,
    pods.DisruptionBudget: BUDGET_RULES,
    api.Stage: (
        *_POD_SETTINGS,
        SHM_RULE,
        _ROLES,
        *_extra_rules(),
        REPLICAS_RULE,
        _STAGE_TOKENS,
        *STAGE_BUDGET_RULES,
        *STAGE_COMPONENT_RULES,
    ),
    api.Rollout: (_ROLLOUT,),
    scaling.Scaling: SCALING_RULES,
    scaling.Objectives: (OBJECTIVES_RULE,),
    k8s.Resources: RESOURCE_RULES,
    k8s.Toleration: _TOLERATION,
    k8s.NodeSelectorTerm: (_NODE_TERM, _NODE_TERM_SAYS),
    k8s.NodeSelectorRequirement: (_VALUES, _NUMBER),
    k8s.LabelSelectorRequirement: (_VALUES,),
    EngineArgs: _ENGINE_ARGS,
    Limits: LIMITS_RULES,
    SamplingDefaults: (_SAMPLING,),
}
"""Rules by the type that they check."""
