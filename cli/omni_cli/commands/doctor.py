"""`omnipipe doctor`: what will fail in a cluster, and what to do. Pure functions judge what cluster/facts.py read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from omni_cli.cluster.access import Document
from omni_cli.cluster.facts import OPERATORS, Facts, Unknown
from omni_proto.pipeline import API_VERSION, KIND, is_accelerator
from omni_proto.pipeline.schema import object_schema, structural_schema
from omni_proto.pipeline.types.scaling import STAGE_KIND, OmniStage

Level = Literal["ok", "note", "warning", "error"]
OLDEST: Final = (1, 30)
"""The oldest Kubernetes that the chart installs on."""
MARKS: Final[Mapping[Level, tuple[str, str]]] = {
    "ok": ("ok", "green"),
    "note": ("-", "dim"),
    "warning": ("!", "yellow"),
    "error": ("x", "red"),
}
_VERSION: Final = API_VERSION.partition("/")[2]
_NEEDED: Final[Mapping[str, tuple[tuple[str, ...], Callable[[], Document]]]] = {
    KIND: (("status",), object_schema),
    STAGE_KIND: (("scale", "status"), lambda: structural_schema(OmniStage)),
}
"""The subresources and the schema that this omnipipe knows of each kind."""
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was checked."""

    check: str
    level: Level
    text: str
    remedy: str = ""


def judge(facts: Facts, version: str) -> list[Diagnosis]:
    """Returns the findings in the order in which they matter. version: of this omnipipe."""
    return [
        *_judge_kubernetes(facts),
        *(_judge_crd(kind, crd) for kind, crd in facts.crds.items()),
        *_judge_operator(facts, version),
        *_judge_rights(facts),
        *_judge_devices(facts),
        *_judge_admission(facts),
        *_judge_quotas(facts),
        *_judge_network(facts),
        *_judge_storage(facts),
        *_judge_groups(facts),
    ]


def to_json(findings: list[Diagnosis]) -> list[dict[str, Any]]:
    """Returns the findings for -o json and -o yaml."""
    return [asdict(finding) for finding in findings]


def _unread(check: str, unknown: Unknown) -> Diagnosis:
    return Diagnosis(check, "note", f"not checked: {unknown.why}", "run it as a user who may read this")


def _judge_kubernetes(facts: Facts) -> Iterator[Diagnosis]:
    if isinstance(facts.version, Unknown):
        yield _unread("kubernetes", facts.version)
        return
    text = str(facts.version.get("gitVersion", "?"))
    match = re.match(r"v(\d+)\.(\d+)", text)
    if match and (int(match[1]), int(match[2])) < OLDEST:
        yield Diagnosis(
            "kubernetes",
            "error",
            f"{text} is older than {OLDEST[0]}.{OLDEST[1]}",
            "upgrade the cluster; the chart refuses it",
        )
    else:
        yield Diagnosis("kubernetes", "ok", text)


def _judge_crd(kind: str, crd: Document | Unknown) -> Diagnosis:
    if isinstance(crd, Unknown):
        if crd.status != 404:
            return _unread("crd", crd)
        remedy = "install the chart, or kubectl apply --server-side -f manifests/crd"
        return Diagnosis("crd", "error", f"{kind} is not installed", remedy)
    said = {one["type"]: one for one in (crd.get("status") or {}).get("conditions") or ()}
    for condition, good in (("Terminating", "False"), ("NamesAccepted", "True"), ("Established", "True")):
        found = said.get(condition) or {"status": "False"}
        if found["status"] != good:
            text = f"{kind} has {condition}={found['status']}: {found.get('message') or 'it is not served yet'}"
            return Diagnosis("crd", "error", text, f"kubectl describe crd {crd['metadata']['name']}")
    served = {one["name"]: one for one in crd["spec"]["versions"] if one.get("served")}
    if _VERSION not in served:
        text = f"{kind} is served in {', '.join(served) or 'no version'}, not {_VERSION}"
        return Diagnosis("crd", "error", text, "apply the CRDs of this release (docs/upgrade.md)")
    subresources, schema = _NEEDED[kind]
    theirs = _surface(served[_VERSION]["schema"]["openAPIV3Schema"], served[_VERSION].get("subresources") or ())
    ours = _surface(schema(), subresources)
    if missing := sorted(ours - theirs):
        text = f"{kind} is older than this omnipipe: the API server refuses or drops {_some(missing)}"
        return Diagnosis("crd", "warning", text, "upgrade the CRDs before the operator (docs/upgrade.md)")
    if more := sorted(theirs - ours):
        text = f"{kind} is newer than this omnipipe, which does not know {_some(more)}"
        return Diagnosis("crd", "warning", text, "install the omnipipe of the cluster's release")
    return Diagnosis("crd", "ok", f"{kind} {_VERSION}, with the fields of this omnipipe")


def _surface(schema: Document, subresources: Iterable[str]) -> set[str]:
    parts = (list_fields(schema["properties"][part], part) for part in ("spec", "status"))
    return set().union(*parts, (f"/{name}" for name in subresources))


def list_fields(schema: Document, path: str = "spec") -> set[str]:
    """Returns the paths of all fields of a structural schema."""
    found: set[str] = set()
    for name, node in (schema.get("properties") or {}).items():
        found |= {f"{path}.{name}"} | list_fields(node, f"{path}.{name}")
    for key, suffix in (("items", "[]"), ("additionalProperties", "[*]")):
        if isinstance(schema.get(key), dict):
            found |= list_fields(schema[key], f"{path}{suffix}")
    return found


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _judge_operator(facts: Facts, version: str) -> Iterator[Diagnosis]:
    if isinstance(facts.operators, Unknown):
        yield _unread("operator", facts.operators)
        return
    if not facts.operators:
        yield Diagnosis(
            "operator", "error", "there is none, so nothing acts on pipelines", "install the chart (docs/install.md)"
        )
    for one in facts.operators:
        name = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
        wanted, ready = one["spec"].get("replicas", 1), (one.get("status") or {}).get("readyReplicas", 0)
        theirs = (one["metadata"].get("labels") or {}).get("app.kubernetes.io/version", "")
        if wanted == 0:
            yield Diagnosis("operator", "error", f"{name} has no pods (replicas: 0)", "scale it to 1")
        elif ready == 0:
            remedy = f"kubectl describe pods -n {one['metadata']['namespace']} -l {OPERATORS}"
            yield Diagnosis("operator", "error", f"{name} has no ready pod", remedy)
        elif theirs and theirs != version:
            text = f"{name} is version {theirs}, this omnipipe {version}"
            yield Diagnosis("operator", "warning", text, "validate with the omnipipe of the operator's version")
        else:
            yield Diagnosis("operator", "ok", f"{name} {theirs}".rstrip())


def _judge_rights(facts: Facts) -> Iterator[Diagnosis]:
    for right, allowed in facts.rights.items():
        if isinstance(allowed, Unknown):
            yield _unread("rights", allowed)
        elif allowed:
            yield Diagnosis("rights", "ok", f"you may {right}")
        else:
            text = f"you may not {right} in {facts.namespace}"
            yield Diagnosis("rights", "warning", text, "ask for the ClusterRole edit in the namespace")


def _judge_devices(facts: Facts) -> Iterator[Diagnosis]:
    if isinstance(facts.nodes, Unknown):
        yield _unread("devices", facts.nodes)
        return
    devices: dict[str, int] = {}
    tainted: dict[str, int] = {}
    for node in facts.nodes:
        for name, count in ((node.get("status") or {}).get("allocatable") or {}).items():
            if is_accelerator(name) and str(count).isdigit() and int(count):
                devices[name] = devices.get(name, 0) + int(count)
                if any(taint.get("effect") != "PreferNoSchedule" for taint in node["spec"].get("taints") or ()):
                    tainted[name] = tainted.get(name, 0) + int(count)
    if not devices:
        yield Diagnosis(
            "devices",
            "warning",
            f"none of {len(facts.nodes)} nodes offers a GPU; only stages without GPUs can run",
            "install the vendor's device plugin or GPU operator, and check kubectl describe nodes",
        )
    for name, count in devices.items():
        yield Diagnosis("devices", "ok", f"{count} {name}")
        if tainted.get(name) == count:
            text = f"all nodes with {name} have taints"
            yield Diagnosis("devices", "warning", text, "set defaults.tolerations of pipelines")


def _judge_admission(facts: Facts) -> Iterator[Diagnosis]:
    if isinstance(facts.admitted, Unknown):
        if facts.admitted.status == 403 and "cannot create resource" in facts.admitted.why:
            yield _unread("admission", facts.admitted)
        else:
            text = f"a pod as restricted as a stage's is refused: {facts.admitted.why}"
            yield Diagnosis("admission", "error", text, "correct the policy, quota or webhook that the message names")
    else:
        yield Diagnosis("admission", "ok", "a pod as restricted as a stage's is admitted")
    if isinstance(facts.space, Unknown):
        return
    level = (facts.space["metadata"].get("labels") or {}).get("pod-security.kubernetes.io/enforce", "")
    yield Diagnosis("admission", "ok", f"Pod Security enforces {level or 'nothing'}; stages conform to restricted")


def _judge_quotas(facts: Facts) -> Iterator[Diagnosis]:
    if isinstance(facts.quotas, Unknown):
        yield _unread("quotas", facts.quotas)
        return
    if not facts.quotas:
        yield Diagnosis("quotas", "ok", "the namespace has none")
    for quota in facts.quotas:
        hard, used = quota["spec"].get("hard") or {}, (quota.get("status") or {}).get("used") or {}
        full = sorted(name for name, most in hard.items() if str(used.get(name, "0")) == str(most))
        name = quota["metadata"]["name"]
        if full:
            remedy = "raise it, or delete what uses it; a BlueGreen rollout needs room for two sets of stages"
            yield Diagnosis("quotas", "warning", f"{name} has no room left: {_some(full)}", remedy)
        else:
            yield Diagnosis("quotas", "ok", f"{name} has room: {_some(sorted(hard))}")


def _judge_network(facts: Facts) -> Iterator[Diagnosis]:
    if isinstance(facts.policies, Unknown):
        yield _unread("network", facts.policies)
        return
    closed = [
        policy["metadata"]["name"]
        for policy in facts.policies
        if not (policy["spec"].get("podSelector") or {})
        and not policy["spec"].get("egress")
        and "Egress" in (policy["spec"].get("policyTypes") or ())
    ]
    if closed:
        text = f"{_some(sorted(closed))} closes the egress of all pods; stages have own policies, clients need one"
        yield Diagnosis(
            "network", "note", text, "let client pods reach port 50051 of pods with omnipipeline.io/role: entry"
        )
    else:
        yield Diagnosis("network", "ok", "no policy of the namespace closes the egress of all pods")


def _judge_storage(facts: Facts) -> Iterator[Diagnosis]:
    if isinstance(facts.classes, Unknown):
        yield _unread("storage", facts.classes)
        return
    mark = "storageclass.kubernetes.io/is-default-class"
    default = [
        one["metadata"]["name"]
        for one in facts.classes
        if (one["metadata"].get("annotations") or {}).get(mark) == "true"
    ]
    if default:
        yield Diagnosis("storage", "ok", f"default storage class {default[0]}")
    else:
        text = f"no default storage class among {len(facts.classes)}"
        yield Diagnosis("storage", "note", text, "name a class in claims of model.cache and pvc:// models")


def _judge_groups(facts: Facts) -> Iterator[Diagnosis]:
    if isinstance(facts.groups, Unknown):
        yield _unread("apis", facts.groups)
        return
    there = {group["name"] for group in facts.groups.get("groups") or ()}
    for group, use in (
        ("gateway.networking.k8s.io", "routes of the Gateway API"),
        ("monitoring.coreos.com", "PodMonitors and alerts"),
        ("metrics.k8s.io", "autoscaling of the gateway by CPU"),
    ):
        if group in there:
            yield Diagnosis("apis", "ok", f"{group}: {use}")
        else:
            yield Diagnosis("apis", "note", f"no {group}, so no {use}", "install it if you want them")
