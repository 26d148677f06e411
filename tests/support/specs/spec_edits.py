"""The parts from which spec_table.py's cases are made: a valid pipeline, and edits of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]
Edit = Callable[[Document], None]

BASE: Document = {
    "apiVersion": "omnipipeline.io/v1alpha1",
    "kind": "OmniPipeline",
    "metadata": {"name": "omni"},
    "spec": {
        "model": {"uri": "hf://Qwen/Qwen2.5-Omni-7B"},
        "stages": [
            {"name": "thinker", "component": "qwen2_5_omni/thinker", "outputs": ["Text"]},
            {"name": "talker", "component": "qwen2_5_omni/talker", "inputs": [{"from": "thinker", "mode": "Stream"}]},
            {
                "name": "token2wav",
                "component": "qwen2_5_omni/token2wav",
                "inputs": [{"from": "talker"}],
                "outputs": ["Audio"],
            },
        ],
    },
}


@dataclass(frozen=True, slots=True)
class Bad:
    """A pipeline that must be rejected."""

    edit: Edit | tuple[Edit, ...]
    field: str
    """Path of the wrong field."""
    message: str
    """A part of the API server's error message."""
    offline: str = ""
    """A part of `omnipipe validate`'s error message; empty if that also contains `message`."""

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Returns the edits that make a valid pipeline this one."""
        return self.edit if isinstance(self.edit, tuple) else (self.edit,)


def edit(path: str, value: Any) -> Edit:
    """Returns an edit that sets the value at a path such as spec/stages/0/name. The value None removes the field."""

    def apply(document: Document) -> None:
        *parents, last = path.split("/")
        node: Any = document
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        if value is None:
            del node[last]
        elif isinstance(node, list):
            node[int(last)] = value
        else:
            node[last] = value

    return apply


def make(*edits: Edit) -> Document:
    """Returns the base pipeline with these edits."""
    document = copy.deepcopy(BASE)
    for change in edits:
        change(document)
    return document


def first(**fields: Any) -> Edit:
    """Returns an edit that sets fields of the first stage, which is the entry."""
    return lambda document: document["spec"]["stages"][0].update(fields)


def second(**fields: Any) -> Edit:
    """Returns an edit that sets fields of the second stage, which reads from the first."""
    return lambda document: document["spec"]["stages"][1].update(fields)


def third(**fields: Any) -> Edit:
    """Returns an edit that sets fields of the third stage, which reads from the second."""
    return lambda document: document["spec"]["stages"][2].update(fields)


def stages(*chains: str) -> Edit:
    """Returns an edit that replaces the stages by chains. In "a b c", b reads from a, c from b, and c returns audio.

    The component of these stages is not built in, so validation has no facts about it.
    """

    def apply(document: Document) -> None:
        made: dict[str, Document] = {}
        for chain in chains:
            names = chain.split()
            for above, name in zip([None, *names], names, strict=False):
                stage = made.setdefault(name, {"name": name, "component": "acme/any"})
                if above:
                    stage["inputs"] = [{"from": above}]
            made[names[-1]]["outputs"] = ["Audio"]
        document["spec"]["stages"] = list(made.values())

    return apply


def node_affinity(term: Document) -> Edit:
    """Returns an edit that requires this node selector term for the pods of every stage."""
    required = {"nodeSelectorTerms": [term]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return edit("spec/defaults/affinity", affinity)


def pod_anti_affinity(selector: Document) -> Edit:
    """Returns an edit that keeps the first stage's pods away from nodes with pods that the selector matches."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    return first(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})


YAML_WORDS: dict[str, Any] = {
    **dict.fromkeys(("y", "Yes", "ON", "true"), True),
    **dict.fromkeys(("N", "no", "off", "FALSE"), False),
    **dict.fromkeys(("", "~", "null"), None),
    **{word: word for word in ("12:30", "12:30:00", "2026-01-01", "2026-01-01T00:00:00Z", "=", "0o9", "1,000", "+-1")},
    "1e9": 10**9,
    "1E+3": 1000,
    "1.5e3": 1500,
    "1.": 1,
    "08": 8,
    "12e03": 12000,
    "-0": 0,
    "+1": 1,
    "1_000": 1000,
    "0x10": 16,
    "010": 8,
    "0o10": 8,
    "0b11": 3,
    "2.5": 2.5,
    ".5": 0.5,
    "+.5e-3": 0.0005,
}
"""Plain YAML scalar -> the value that kubectl reads."""

NGINX = "nginx.ingress.kubernetes.io/backend-protocol"
"""The annotation by which ingress-nginx speaks another protocol than HTTP/1.1 to a Service."""
LETTERS = "abcdefghijklmnopq"
"""17 stage names."""
TERM = (
    "spec.defaults.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
    ".matchExpressions[0].values"
)
S0, S1, S2 = (f"spec.stages[{index}]" for index in range(3))
