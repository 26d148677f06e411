"""The parts of spec_table.py's cases: a valid pipeline, and edits of it."""

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
    """A document that must be refused."""

    edits: tuple[Edit, ...]
    field: str
    """The path that is to blame."""
    message: str
    """Words about it, of the API server and, unless `offline` is given, of `omnipipe validate`."""
    offline: str = ""


def edit(path: str, value: Any) -> Edit:
    """Set the value at a path such as spec/stages/0/name; None removes it."""

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
    """Returns the base with these edits."""
    document = copy.deepcopy(BASE)
    for change in edits:
        change(document)
    return document


def first(**fields: Any) -> Edit:
    """Set fields of the first stage, the entry."""
    return lambda document: document["spec"]["stages"][0].update(fields)


def second(**fields: Any) -> Edit:
    """Set fields of the second stage, which reads the first."""
    return lambda document: document["spec"]["stages"][1].update(fields)


def third(**fields: Any) -> Edit:
    """Set fields of the third stage, which reads the second."""
    return lambda document: document["spec"]["stages"][2].update(fields)


def stages(*chains: str) -> Edit:
    """Other stages, as chains such as "a b c": b reads a, c reads b; the last one returns audio.

    Their component is not built in, so that nothing is known of it.
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
    """Returns a node selector term that pods of every stage need."""
    required = {"nodeSelectorTerms": [term]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return edit("spec/defaults/affinity", affinity)


def pod_anti_affinity(selector: Document) -> Edit:
    """Pods of the first stage are far from those that the selector finds."""
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
"""What kubectl makes of a plain word."""

LETTERS = "abcdefghijklmnopq"
"""17 names of stages."""
TERM = (
    "spec.defaults.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
    ".matchExpressions[0].values"
)
S0, S1, S2 = (f"spec.stages[{index}]" for index in range(3))
