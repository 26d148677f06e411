"""Rules on settings of pods, in CEL: references between fields, exactly one of several, and the names of the operator.

A stage's own list replaces the list of `defaults`, so rules between two of them are rules on spec.
"""

from __future__ import annotations

from typing import Final

from omni_proto.pipeline.rules.resources import MIN_BYTES
from omni_proto.pipeline.rules.rule import Rule, one_of, quote
from omni_proto.pipeline.types import pods

GRACE_BEYOND_REQUEST_S: Final = 30
"""Seconds of a termination in addition to the longest request: the pre-stop sleep, the start of the drain, and the
engine's shutdown."""


def _list(names: tuple[str, ...]) -> str:
    return f"[{', '.join(map(quote, names))}]"


ENV_VAR_RULES: Final = (
    Rule(
        summary=f"`name` is no variable that the operator sets: {', '.join(pods.RESERVED_VARIABLES)}, and those that "
        f"begin with {pods.RESERVED_PREFIX}",
        rule=f"!(self.name in {_list(pods.RESERVED_VARIABLES)} || self.name.startsWith({quote(pods.RESERVED_PREFIX)}))",
        words="%s is set by the operator and cannot be overridden; remove it",
        values=("self.name",),
        field=".name",
    ),
    Rule(
        summary="`value` excludes `valueFrom`",
        rule="!(has(self.value) && self.value != '' && has(self.valueFrom))",
        words="%s has a value and valueFrom; keep one",
        values=("self.name",),
        field=".valueFrom",
    ),
)
ENV_SOURCE_RULES: Final = (one_of("secretKeyRef", "configMapKeyRef", "fieldRef"),)
ENV_FROM_RULES: Final = (one_of("configMapRef", "secretRef"),)

VOLUME_RULES: Final = (
    Rule(
        summary=f"`name` is no volume of the pod itself: {', '.join(pods.RESERVED_VOLUMES)}",
        rule=f"!(self.name in {_list(pods.RESERVED_VOLUMES)})",
        words="%s is the name of a volume of the pod itself; give another name",
        values=("self.name",),
        field=".name",
    ),
    one_of("configMap", "secret", "persistentVolumeClaim", "csi", "image"),
)

KEY_PATH_RULES: Final = (
    Rule(
        summary="`path` does not begin with `..`, and has no part `..`",
        rule="!self.path.matches('^[.][.]|/[.][.](/|$)')",
        words="%s begins with .. or has such a part, which Kubernetes refuses; give a path without it",
        values=("self.path",),
        field=".path",
    ),
)

_TAKEN = (
    f"(self.mountPath in {_list((*pods.RESERVED_PARENTS, *pods.RESERVED_TREES))} || "
    f"{_list(tuple(f'{path}/' for path in pods.RESERVED_TREES))}.exists(p, self.mountPath.startsWith(p)))"
)
MOUNT_RULES: Final = (
    Rule(
        summary=f"`mountPath` is not {', '.join(pods.RESERVED_PARENTS)}, nor in {', '.join(pods.RESERVED_TREES)}, "
        "which are the pod's own",
        rule=f"!{_TAKEN}",
        words="%s belongs to the pod itself and cannot be covered; mount the volume at another path, such as /data",
        values=("self.mountPath",),
        field=".mountPath",
    ),
    Rule(
        summary="`mountPath` and `subPath` have no part `.` or `..`",
        rule="[self.mountPath, has(self.subPath) ? self.subPath : ''].all(p, !p.matches('(^|/)[.][.]?(/|$)'))",
        words="paths of volume %s contain . or ..; give them without",
        values=("self.name",),
        field=".mountPath",
    ),
)

CLAIM_RULES: Final = (one_of("resourceClaimName", "resourceClaimTemplateName"),)

BUDGET_RULES: Final = (
    Rule(
        summary="`minAvailable` excludes `maxUnavailable`",
        rule="!(has(self.minAvailable) && has(self.maxUnavailable))",
        words="minAvailable and maxUnavailable are both set; keep one",
        field=".minAvailable",
    ),
)


def _names_of(field: str) -> str:
    """Returns a CEL expression for the names in a list of stage s: its own, else that of the defaults, else none.

    The two lists have different types in CEL, but their names are texts.
    """
    names = f"{field}.map(v, v.name)"
    default = f"has(self.defaults) && has(self.defaults.{field}) ? self.defaults.{names} : []"
    return f"(has(s.{field}) ? s.{names} : ({default}))"


def _without(used: str, field: str) -> str:
    """Returns a CEL expression for the names in `used` that are not in the list `field` of stage s."""
    return f"[{_names_of(field)}].map(n, {used}.filter(u, !(u in n)))[0]"


_CLAIMS = "(has(s.resources) && has(s.resources.claims) ? s.resources.claims.map(c, c.name) : [])"
_NO_VOLUMES = _without(_names_of("volumeMounts"), "volumes")
_NO_CLAIMS = _without(_CLAIMS, "resourceClaims")
_REQUEST_S = "(has(self.timeouts) && has(self.timeouts.request) ? double(self.timeouts.request) : 300.0)"
_GRACE = "terminationGracePeriodSeconds"
_GRACES = (
    f"(self.stages.filter(s, has(s.{_GRACE})).map(s, s.{_GRACE}) + "
    f"(has(self.defaults) && has(self.defaults.{_GRACE}) ? [self.defaults.{_GRACE}] : []))"
)
_SHORT = f"double(g) < {_REQUEST_S} + {GRACE_BEYOND_REQUEST_S}.0"

SPEC_POD_RULES: Final = (
    Rule(
        summary="`volumeMounts` name `volumes`; both are those of the stage, else of `defaults`",
        rule=f"self.stages.all(s, size({_NO_VOLUMES}) == 0)",
        words="volumeMounts of %s name volumes that do not exist; add them to volumes of the stage, or of defaults",
        values=(f"self.stages.filter(s, size({_NO_VOLUMES}) > 0).map(s, s.name)",),
        field=".stages",
    ),
    Rule(
        summary="`resources.claims` name `resourceClaims` of the stage, else of `defaults`",
        rule=f"self.stages.all(s, size({_NO_CLAIMS}) == 0)",
        words="resources.claims of %s name claims that do not exist; add them to resourceClaims of the stage, or of "
        "defaults",
        values=(f"self.stages.filter(s, size({_NO_CLAIMS}) > 0).map(s, s.name)",),
        field=".stages",
    ),
    Rule(
        summary=f"`{_GRACE}` is at least `timeouts.request` and {GRACE_BEYOND_REQUEST_S} s",
        rule=f"{_GRACES}.all(g, !({_SHORT}))",
        words=f"{_GRACE} %s is shorter than timeouts.request and {GRACE_BEYOND_REQUEST_S} s, so pods would be killed "
        "while they answer; raise it, or lower timeouts.request",
        values=(f"{_GRACES}.filter(g, {_SHORT})",),
        field=".stages",
    ),
)
"""Rules on spec."""

_MEMORY = "self.resources.limits['memory']"
SHM_SIZE_RULE: Final = Rule(
    summary=f"`shmSize` is at least {MIN_BYTES}",
    rule=f"!has(self.shmSize) || quantity(string(self.shmSize)).compareTo(quantity('{MIN_BYTES}')) >= 0",
    words=f"shmSize %s is less than {MIN_BYTES}; the number counts bytes, and m means a thousandth; write for example "
    "8Gi",
    values=("string(self.shmSize)",),
    field=".shmSize",
)
SHM_RULE: Final = Rule(
    summary="`shmSize` is below the limit of memory",
    rule="!has(self.shmSize) || !has(self.resources) || !has(self.resources.limits) || "
    "!('memory' in self.resources.limits) || "
    f"quantity(string(self.shmSize)).compareTo(quantity(string({_MEMORY}))) < 0",
    words="shmSize %s is not below resources.limits.memory %s, towards which it counts; lower it, or raise the memory",
    values=("string(self.shmSize)", f"string({_MEMORY})"),
    field=".shmSize",
)
