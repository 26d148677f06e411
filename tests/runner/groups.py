"""Groups of test files that run in one process, and the tier of each group. Pure.

Files share a process if they share an expensive setup: the import of vLLM, a control plane, or a running pipeline. The
group that takes longest starts first, so that no group runs alone at the end.

`make test` runs the groups of the first tier, without Go, root or downloads: unit tests, one engine of each kind, one
pipeline of each family. `make test-all` runs the others too. Whole matrices have the marker `full` (make full).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok")
"""Programs of a control plane, as support.controlplane.binaries knows them."""


@dataclass(frozen=True, slots=True)
class Group:
    """Test files that one pytest process runs, in order."""

    name: str
    files: tuple[str, ...]
    """Paths from the repository's root."""
    bound_s: float
    """Seconds after which the runner ends the process: several times as long as it takes on two busy cores."""
    takes_s: float = 0.0
    """Expected seconds, as in Rule."""
    first: bool = False
    """Whether the group belongs to the first tier."""
    needs: tuple[str, ...] = ()
    """Programs without which the first tier leaves the group to the rest."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The files whose path starts with one of the prefixes form one group, unless an earlier rule matches them."""

    name: str
    prefixes: tuple[str, ...]
    bound_s: float = 3000.0
    takes_s: float = 0.0
    """Roughly how many seconds the group takes while others run on the same two cores. It only orders the groups."""
    first: bool = False
    needs: tuple[str, ...] = ()


RULES: tuple[Rule, ...] = (
    # The first match wins, so rules for parts of a folder come before the rule for the folder. Each group that needs
    # vLLM spends eight CPU seconds to import it. The stages of test pipelines do not: they are forked from a process
    # that has imported it.
    #
    # The first tier.
    Rule("operator", ("tests/controlplane/pipelines/test_lifecycle",), takes_s=60, first=True, needs=CONTROL_PLANE),
    Rule(
        "engines",
        ("tests/engine/generic/test_llm_engine.py", "tests/engine/qwen/test_qwen25_stages"),
        takes_s=100,
        first=True,
    ),
    Rule(
        "tiny-pipeline",
        (
            "tests/pipeline/answers/",
            "tests/pipeline/cli/test_cli_generate",
            "tests/pipeline/gateway/test_gateway",
            "tests/pipeline/observability/test_canaries",
            "tests/pipeline/test_sockets",
        ),
        takes_s=270,
        first=True,
    ),
    # Not in the first tier: a process for each file or form, and kernels that are interpreted and compiled. They took a
    # sixth of the CPU time of `make test`.
    Rule(
        "unit-costly",
        (
            "tests/unit/forms/test_trial_pool",
            "tests/unit/models/qwen3_omni/test_code2wav_kernels",
            "tests/unit/service/media/test_hostile_media",
            "tests/unit/service/test_fuzz_corpus",
        ),
        takes_s=240,
    ),
    Rule(
        "unit-stage",
        (
            *(f"tests/unit/{name}/" for name in ("engine", "payloads", "service", "vllm_adapter")),
            # These three files import vLLM.
            "tests/unit/models/generic/test_generic_prompts",
            "tests/unit/models/qwen2_5_omni/test_published_defaults",
            "tests/unit/proto/test_gpu_memory",
        ),
        takes_s=180,
        first=True,
    ),
    Rule("unit-models", ("tests/unit/models/", "tests/unit/benchmarks/", "tests/unit/docs/"), takes_s=230, first=True),
    # Apart from the other unit tests, so that no process runs alone at the end.
    Rule("unit-operator", ("tests/unit/operator/", "tests/unit/forms/"), takes_s=200, first=True),
    Rule("unit-clients", ("tests/unit/cli/", "tests/unit/decoding/", "tests/unit/gateway/"), takes_s=120, first=True),
    Rule("unit", ("tests/unit/",), takes_s=180, first=True),
    # The rest.
    Rule("api-server", ("tests/controlplane/crd/", "tests/controlplane/client/"), takes_s=180),
    Rule("helm", ("tests/controlplane/chart/",), takes_s=300),
    Rule(
        "control-plane-faults",
        ("tests/controlplane/faults/test_faults", "tests/controlplane/kit/test_kit"),
        takes_s=170,
    ),
    Rule(
        "control-plane-healing",
        (
            "tests/controlplane/faults/",
            "tests/controlplane/kit/test_fault_proxy",
            "tests/controlplane/operator/test_idle",
            "tests/controlplane/pipelines/test_children",
        ),
        takes_s=230,
    ),
    Rule("control-plane", ("tests/controlplane/",), takes_s=350),
    Rule("pipeline", ("tests/pipeline/",), takes_s=420),
    Rule(
        "engine-stages", tuple(f"tests/engine/{folder}/" for folder in ("checkpoints", "qwen", "streams")), takes_s=340
    ),
    Rule("engine-runners", ("tests/engine/",), takes_s=450),
    Rule("processes", ("tests/processes/",), takes_s=280),
)


class UngroupedTestError(ValueError):
    """A test file belongs to no group, so it would never run."""


def list_groups(files: Iterable[str], rules: Iterable[Rule] = RULES) -> list[Group]:
    """Returns the groups that have files: the longest group first, and each group's files in alphabetical order.

    Raises UngroupedTestError if no rule matches a file.
    """
    rules = tuple(rules)
    taken: dict[str, list[str]] = {rule.name: [] for rule in rules}
    for file in sorted(files):
        rule = next((rule for rule in rules if file.startswith(rule.prefixes)), None)
        if rule is None:
            raise UngroupedTestError(f"{file} is in no group; add it to RULES in tests/runner/groups.py")
        taken[rule.name].append(file)
    groups = [
        Group(rule.name, tuple(taken[rule.name]), rule.bound_s, rule.takes_s, rule.first, rule.needs)
        for rule in rules
        if taken[rule.name]
    ]
    return sorted(groups, key=lambda group: -group.takes_s)


def choose_tier(
    groups: Iterable[Group], tier: str, *, missing: Collection[str], reported: Collection[str]
) -> tuple[list[Group], list[Group]]:
    """Returns the groups of a tier that run, and those that the first tier leaves to the rest.

    Args:
        groups: All groups.
        tier: "first"; "rest", which is what "first" did not run; or "all".
        missing: Programs that are not at hand. The first tier leaves out groups that need one of them.
        reported: Names of groups that have a report in the folder of logs. The rest does not repeat them.
    """
    groups = list(groups)
    if tier == "all":
        return groups, []
    first = [group for group in groups if group.first]
    left_out = [group for group in first if set(group.needs) & set(missing)]
    if tier == "first":
        return [group for group in first if group not in left_out], left_out
    again = [group for group in first if group.needs and group.name not in reported]
    return [group for group in groups if not group.first or group in again], []
