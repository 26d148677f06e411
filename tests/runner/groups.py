"""Which test files run in one process. Pure.

Files share a process when they share what takes long: imports of vLLM, a control plane, a running pipeline. The group
that takes longest starts first, so that none runs alone at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """Test files that one pytest process runs, in order."""

    name: str
    files: tuple[str, ...]
    """Paths from the repository's root."""
    bound_s: float
    """Seconds after which the process is ended; several times what it takes on two busy cores."""
    takes_s: float = 0.0
    """As Rule has it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Files below one of the prefixes, unless an earlier rule has taken them, form one group."""

    name: str
    prefixes: tuple[str, ...]
    bound_s: float = 2000.0
    takes_s: float = 0.0
    """Seconds that it takes beside others on two cores, roughly; only the order of the groups depends on it."""


RULES: tuple[Rule, ...] = (
    # First match wins, so what is taken out of a folder stands before the folder. Each group that needs vLLM imports it
    # for eight seconds of CPU; of pipelines, its processes are forks of one that did.
    Rule("api-server", ("tests/controlplane/test_crd", "tests/controlplane/client/"), takes_s=60),
    Rule(
        "helm",
        ("tests/controlplane/test_helm", "tests/controlplane/test_install", "tests/controlplane/test_chart"),
        takes_s=200,
    ),
    Rule("control-plane-faults", ("tests/controlplane/test_faults", "tests/controlplane/test_kit"), takes_s=170),
    Rule(
        "control-plane-healing",
        tuple(f"tests/controlplane/test_{name}" for name in ("adversarial", "c", "fault_proxy", "healing", "idle")),
        takes_s=230,
    ),
    Rule("control-plane", ("tests/controlplane/",), takes_s=300),
    Rule(
        "tiny-pipeline",
        (
            "tests/pipeline/test_canaries",
            "tests/pipeline/test_cli_generate",
            "tests/pipeline/test_foreign_clients",
            "tests/pipeline/test_gateway",
            "tests/pipeline/test_parity_grpc",
            "tests/pipeline/test_prometheus",
            "tests/pipeline/test_sockets",
            "tests/pipeline/test_stream",
        ),
        takes_s=250,
    ),
    Rule("pipeline", ("tests/pipeline/",), takes_s=330),
    Rule(
        "engine-stages",
        tuple(f"tests/engine/test_{name}" for name in ("hostile", "omni", "p", "qwen", "stream")),
        takes_s=290,
    ),
    Rule("engine-runners", ("tests/engine/",), takes_s=160),
    Rule("processes", ("tests/processes/",), takes_s=180),
    Rule(
        "unit-stage",
        (
            *(f"tests/unit/{name}/" for name in ("engine", "payloads", "service", "vllm_adapter")),
            # Both import vLLM.
            "tests/unit/models/qwen2_5_omni/test_published_defaults",
            "tests/unit/proto/test_gpu_memory",
        ),
        takes_s=80,
    ),
    Rule("unit-models", ("tests/unit/models/", "tests/unit/benchmarks/", "tests/unit/docs/"), takes_s=100),
    Rule("unit", ("tests/unit/",), takes_s=110),
)


class UngroupedTestError(ValueError):
    """A test file belongs to no group, so it would never run."""


def list_groups(files: Iterable[str], rules: Iterable[Rule] = RULES) -> list[Group]:
    """Returns the groups that have files, the one that takes longest first, files in alphabetical order.

    Raises UngroupedTestError if no rule takes a file.
    """
    rules = tuple(rules)
    taken: dict[str, list[str]] = {rule.name: [] for rule in rules}
    for file in sorted(files):
        rule = next((rule for rule in rules if file.startswith(rule.prefixes)), None)
        if rule is None:
            raise UngroupedTestError(f"{file} is in no group; add it to RULES in tests/runner/groups.py")
        taken[rule.name].append(file)
    groups = [
        Group(rule.name, tuple(taken[rule.name]), rule.bound_s, rule.takes_s) for rule in rules if taken[rule.name]
    ]
    return sorted(groups, key=lambda group: -group.takes_s)
