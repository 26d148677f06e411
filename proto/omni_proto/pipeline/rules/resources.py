"""Rules on resources and budgets, in CEL. They refuse wrong units and limits that contradict one another."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

from omni_proto.pipeline.rules.rule import Rule, quote
from omni_proto.pipeline.types import kubernetes as k8s
from omni_proto.stage_config import Limits, MediaLimits

MAX_GPUS: Final = 64
"""Maximum number of GPUs of one stage: the largest tensor parallel size."""
MIN_BYTES: Final = "1Mi"
"""Smallest accepted memory or storage. A smaller value has a wrong unit, such as 512m, which is half a byte."""

_GPUS = f"[{', '.join(map(quote, k8s.GPU_RESOURCES))}]"
_EXAMPLE = k8s.GPU_RESOURCES[0]
_GPU_WORDS: Final = (
    "(?i)^(((requests|limits|gpu)[.])?(nvidia|amd)([.]com)?/(gpus?|cuda|rocm)|alpha[.]kubernetes[.]io/nvidia-gpu)$"
)
"""Wrong names that users write for GPU_RESOURCES. No device plugin offers them, so a pod that requests such a name is
never scheduled."""
_PAGES: Final = "hugepages-"
_IS_PAGES: Final = f"k.matches('^{_PAGES}[1-9][0-9]*[KMGT]i$')"


def _quantity(map_: str, key: str = "k") -> str:
    return f"quantity(string({map_}[{key}]))"


def _of_map(field: str, good: str, *, summary: str, words: str, shows_value: bool = False) -> Rule:
    """Returns the rule that `good` holds for every key k of a map of quantities.

    The message lists the other keys, with their values if shows_value.
    """
    own = f"self.{field}"
    names = f"{own}.filter(k, !({good}))"
    return Rule(
        summary=summary,
        rule=f"!has({own}) || {own}.all(k, {good})",
        words=words,
        values=(names, f"{names}.map(k, string({own}[k]))") if shows_value else (names,),
        field=f".{field}",
    )


def _of_both(field: str) -> tuple[Rule, ...]:
    known = (
        f"k in ['cpu', 'memory', 'ephemeral-storage'] || (k.contains('/') && !k.startsWith('requests.')) || {_IS_PAGES}"
    )
    enough = (
        "!(k in ['memory', 'ephemeral-storage']) || "
        f"{_quantity(f'self.{field}')}.compareTo(quantity('{MIN_BYTES}')) >= 0"
    )
    return (
        _of_map(
            field,
            known,
            summary=f"`{field}` names resources that Kubernetes knows",
            words="resources that Kubernetes does not know: %s; it knows cpu, memory, ephemeral-storage, "
            f"huge pages such as hugepages-2Mi, and extended resources of a domain such as {_EXAMPLE}",
        ),
        _of_map(
            field,
            f"k in {_GPUS} || !k.matches({quote(_GPU_WORDS)})",
            summary=f"GPUs in `{field}` have the names of the device plugins",
            words=f"resources that no device plugin offers: %s; GPUs are {' or '.join(k8s.GPU_RESOURCES)}",
        ),
        _of_map(
            field,
            enough,
            summary=f"memory and ephemeral-storage in `{field}` are at least {MIN_BYTES}",
            words=f"less than {MIN_BYTES} of %s: %s; the number counts bytes, and m means a thousandth; "
            "write for example 512Mi or 16Gi",
            shows_value=True,
        ),
    )


def _of_gpus(name: str) -> tuple[Rule, ...]:
    key = quote(name)
    limit, request = f"string(self.limits[{key}])", f"string(self.requests[{key}])"
    return (
        Rule(
            summary=f"the limit of {name} is a whole number from 1 to {MAX_GPUS}; stages on the CPU leave it out",
            rule=f"!has(self.limits) || !({key} in self.limits) || {limit}.matches('^([1-9]|[1-5][0-9]|6[0-4])$')",
            words=f"%s GPUs are set; give a whole number from 1 to {MAX_GPUS}, or leave {name} out to run on the CPU",
            values=(limit,),
            field=".limits",
        ),
        Rule(
            summary=f"a request of {name} equals the limit",
            rule=f"!has(self.requests) || !({key} in self.requests) || "
            f"(has(self.limits) && {key} in self.limits && {limit} == {request})",
            words=f"%s GPUs are requested, which is not the limit; remove {name} from requests, the limit is enough",
            values=(request,),
            field=".requests",
        ),
    )


_IS_OTHER_DEVICE = f"k.contains('/') && !(k in {_GPUS})"
_IS_FIT = (
    f"k.contains('/') || {_IS_PAGES} || !has(self.limits) || !(k in self.limits) || "
    f"{_quantity('self.requests')}.compareTo({_quantity('self.limits')}) <= 0"
)
_IS_LIMIT = (
    f"!({_IS_OTHER_DEVICE} || {_IS_PAGES}) || (has(self.limits) && k in self.limits && "
    f"{_quantity('self.requests')}.compareTo({_quantity('self.limits')}) == 0)"
)

_PAGE_SIZE = f"quantity(k.substring({len(_PAGES)}))"
_WHOLE_PAGES = (
    f"({_quantity('self.limits')}.isInteger() && "
    f"{_quantity('self.limits')}.asInteger() % {_PAGE_SIZE}.asInteger() == 0)"
)

RESOURCE_RULES: Final = (
    *_of_both("limits"),
    *_of_both("requests"),
    Rule(
        summary="a limit of cpu is at least 1m",
        rule="!has(self.limits) || !('cpu' in self.limits) || "
        f"{_quantity('self.limits', quote('cpu'))}.compareTo(quantity('1m')) >= 0",
        words="cpu %s is too small; give at least 1m, a thousandth of a CPU, or leave cpu out for no limit",
        values=("string(self.limits['cpu'])",),
        field=".limits",
    ),
    *(rule for name in k8s.GPU_RESOURCES for rule in _of_gpus(name)),
    Rule(
        summary="a stage has GPUs of one vendor",
        rule=f"!has(self.limits) || self.limits.filter(k, k in {_GPUS}).size() < 2",
        words="GPUs of several vendors are requested: %s; keep one",
        values=(f"self.limits.filter(k, k in {_GPUS})",),
        field=".limits",
    ),
    _of_map(
        "limits",
        f"!({_IS_OTHER_DEVICE}) || string(self.limits[k]).matches('^[0-9]+[kMGTPi]*$')",
        summary="limits of extended resources are whole numbers",
        words="extended resources must be whole numbers: %s is %s; give a whole number",
        shows_value=True,
    ),
    _of_map(
        "limits",
        f"!({_IS_PAGES}) || {_WHOLE_PAGES}",
        summary="huge pages are whole pages",
        words="not a whole number of huge pages: %s is %s; give a multiple of the size in the name",
        shows_value=True,
    ),
    Rule(
        summary="huge pages need a limit or request of cpu or memory",
        rule=f"!has(self.limits) || !self.limits.exists(k, {_IS_PAGES}) || ['cpu', 'memory'].exists(k, "
        "k in self.limits || (has(self.requests) && k in self.requests))",
        words="huge pages are limited without cpu or memory, which Kubernetes refuses; add a limit of memory",
        field=".limits",
    ),
    _of_map(
        "requests",
        _IS_LIMIT,
        summary="a request of an extended resource or of huge pages equals its limit",
        words="a request of %s must equal the limit; set these resources in limits only",
    ),
    _of_map(
        "requests",
        _IS_FIT,
        summary="requests are at most the limits",
        words="requests are above the limits: %s; lower them, or raise the limits",
    ),
)
"""Rules on resources."""


def _default(model: type[BaseModel], field: str) -> int:
    """Returns a field's default. Rules ignore a field with this value, because the API server may have filled it in."""
    return int(model.model_fields[field].default)


LIMITS_RULES: Final = (
    Rule(
        summary="`maxMediaBytes`, unless it is the default, is at most `maxInflightBytes`",
        rule="!has(self.maxMediaBytes) || !has(self.maxInflightBytes) || self.maxMediaBytes <= self.maxInflightBytes "
        f"|| self.maxMediaBytes == {_default(Limits, 'max_media_bytes')}",
        words="maxMediaBytes (%d) is above maxInflightBytes (%d), which all requests together may hold; lower it, or "
        "raise maxInflightBytes",
        values=("self.maxMediaBytes", "self.maxInflightBytes"),
        field=".maxMediaBytes",
    ),
)
"""Rules on limits of a stage."""

_MEMORY = "self.resources.limits['memory']"
_HAS_BOTH = (
    "has(self.limits) && has(self.limits.maxInflightBytes) && "
    "has(self.resources) && has(self.resources.limits) && 'memory' in self.resources.limits"
)
STAGE_BUDGET_RULES: Final = (
    Rule(
        summary="`limits.maxInflightBytes` is below the limit of memory",
        rule=f"!({_HAS_BOTH}) || "
        f"double(self.limits.maxInflightBytes) < quantity(string({_MEMORY})).asApproximateFloat()",
        words="maxInflightBytes (%d) is not below resources.limits.memory (%s); lower it, or raise the memory",
        values=("self.limits.maxInflightBytes", f"string({_MEMORY})"),
        field=".limits",
    ),
)
"""Rules on a stage."""

_TOO_SMALL = (
    "has(s.limits) && has(s.limits.maxInflightBytes) && (!has(s.inputs) || size(s.inputs) == 0) && "
    "s.limits.maxInflightBytes < self.media.maxDecodedBytes"
)
MEDIA_BUDGET_RULES: Final = (
    Rule(
        summary="`media.maxDecodedBytes`, unless it is the default, is at most the entry's `limits.maxInflightBytes`",
        rule="!has(self.media) || !has(self.media.maxDecodedBytes) || "
        f"self.media.maxDecodedBytes == {_default(MediaLimits, 'max_decoded_bytes')} || "
        f"!self.stages.exists(s, {_TOO_SMALL})",
        words="maxDecodedBytes (%d) is above limits.maxInflightBytes of the entry (%s); lower it, or raise "
        "maxInflightBytes",
        values=(
            "self.media.maxDecodedBytes",
            f"self.stages.filter(s, {_TOO_SMALL}).map(s, s.limits.maxInflightBytes)",
        ),
        field=".media",
    ),
)
"""Rules on spec."""
