"""The distributions on the package index: which packages and requirements each has, and its pyproject.toml.

In a checkout everything is one editable project with extras. A release splits it, so that a client brings no vLLM
plugin, an operator no media decoders. The requirements are those of the root's extras, stated once, in pyproject.toml.
`omnipipeline` keeps the root's extras: `pip install 'omnipipeline[cli]'` works in a checkout and from the index.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOME = "https://omnipipeline.io"


@dataclass(frozen=True, slots=True)
class Distribution:
    """What one distribution contains and needs."""

    name: str
    summary: str
    packages: tuple[str, ...]
    """Folders from the repository's root."""
    extra: str = ""
    """The root's extra whose requirements it has; empty: the root's own dependencies."""
    needs: tuple[str, ...] = ()
    """Other distributions of the same version."""
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each extra, other distributions of the same version, or the name of a root's extra for its requirements."""
    start: str = ""
    """What to run first, as a console block."""


_START_CLIENT = """```python
from omnipipeline import OmniClient

with OmniClient("localhost:50051") as client:
    print(client.run(text="Say hello.").text)
```"""


def _console(command: str) -> str:
    return f"```console\n$ {command}\n```"


DISTRIBUTIONS = (
    Distribution(
        "omnipipeline",
        "Client of omnipipeline, which serves any-to-any models on Kubernetes, and its contracts",
        ("proto/omni_proto", "proto/omnipipeline"),
        extras={
            "cli": ("omnipipeline-cli",),
            "cluster": ("cluster",),
            "timeline": ("timeline",),
            "gateway": ("omnipipeline-gateway",),
            "operator": ("omnipipeline-operator",),
            "stage": ("omnipipeline-stage",),
            "cpu": ("omnipipeline-stage[cpu]",),
            "gpu": ("omnipipeline-stage[gpu]",),
            "otel": ("otel",),
        },
        start=_START_CLIENT,
    ),
    Distribution(
        "omnipipeline-kube",
        "Client of the Kubernetes API for omnipipeline's operator and gateway",
        ("kube/omni_kube",),
        extra="kube",
    ),
    Distribution(
        "omnipipeline-operator",
        "Operator of omnipipeline: one Deployment of stage pods per stage of an any-to-any model",
        ("operator/omni_operator",),
        extra="operator",
        needs=("omnipipeline", "omnipipeline-kube"),
        start=_console("python -m omni_operator --help"),
    ),
    Distribution(
        "omnipipeline-gateway",
        "Gateway of omnipipeline: OpenAI's HTTP API in front of pipelines",
        ("gateway/omni_gateway",),
        extra="gateway",
        needs=("omnipipeline",),
        # Only a gateway that watches a cluster needs it.
        extras={"cluster": ("omnipipeline-kube",)},
        start=_console("python -m omni_gateway --endpoint demo=grpc://127.0.0.1:50051"),
    ),
    Distribution(
        "omnipipeline-stage",
        "Stage server of omnipipeline: one stage of an any-to-any model on vLLM, over gRPC",
        ("stage_server/omni_stage",),
        extra="stage",
        needs=("omnipipeline",),
        extras={"cpu": ("cpu",), "gpu": ("gpu",)},
        start=_console("python -m omni_stage serve --config stage.yaml"),
    ),
    Distribution(
        "omnipipeline-cli",
        "The command omnipipe: run, ask, check and watch pipelines of omnipipeline",
        ("cli/omni_cli",),
        extra="cli",
        # `omnipipe render` and `run --http` import the operator's and the gateway's code when they are used.
        needs=("omnipipeline",),
        start=_console("omnipipe --help"),
    ),
)

_ENTRY_POINTS = {
    "omnipipeline-cli": ("scripts", ("omnipipe", "kubectl-omni")),
    "omnipipeline-stage": ('entry-points."vllm.general_plugins"', ("omnipipeline",)),
}
"""Where the entry points of the root's pyproject.toml belong: their table, and their names in it."""


def build_pyproject(one: Distribution, root: Mapping[str, Any]) -> str:
    """Returns the text of a distribution's pyproject.toml. `root` is the parsed pyproject.toml of the repository."""
    project = root["project"]
    version = project["version"]
    lines = [
        "[build-system]",
        f"requires = {json.dumps(root['build-system']['requires'])}",
        'build-backend = "hatchling.build"',
        "",
        "[project]",
        f'name = "{one.name}"',
        f'version = "{version}"',
        f"description = {json.dumps(one.summary)}",
        'readme = "README.md"',
        f"requires-python = {json.dumps(project['requires-python'])}",
        f"license = {json.dumps(project['license'])}",
        'license-files = ["LICENSE"]',
        f"keywords = {json.dumps(project['keywords'])}",
        f"classifiers = {json.dumps([*project['classifiers'], 'Typing :: Typed'])}",
        f"dependencies = {json.dumps([*_pin(one.needs, version), *_requirements(one.extra, root)])}",
        "",
        "[project.urls]",
        f'Homepage = "{HOME}"',
        f'Documentation = "{HOME}/docs"',
        f'Changelog = "{HOME}/CHANGELOG"',
    ]
    if one.extras:
        lines += ["", "[project.optional-dependencies]"]
        for extra, members in one.extras.items():
            # cpu = ["cpu"] of the stage server means the requirements of the root's extra without this project's own.
            found = [item for member in members for item in _resolve(member, root, version)]
            lines.append(f"{extra} = {json.dumps(found)}")
    if one.name in _ENTRY_POINTS:
        table, names = _ENTRY_POINTS[one.name]
        target = project["scripts"] if table == "scripts" else project["entry-points"]["vllm.general_plugins"]
        lines += ["", f"[project.{table}]", *(f"{name} = {json.dumps(target[name])}" for name in names)]
    lines += ["", "[tool.hatch.build.targets.wheel]", f"packages = {json.dumps([Path(p).name for p in one.packages])}"]
    return "\n".join(lines) + "\n"


def _pin(names: tuple[str, ...], version: str) -> list[str]:
    return [f"{name}=={version}" for name in names]


def _requirements(extra: str, root: Mapping[str, Any]) -> list[str]:
    """Returns the requirements of a root's extra that are not this project itself; of an empty name, the root's own."""
    project = root["project"]
    listed = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [one for one in listed if not one.startswith("omnipipeline[")]


def _resolve(member: str, root: Mapping[str, Any], version: str) -> list[str]:
    return _pin((member,), version) if member.startswith("omnipipeline") else _requirements(member, root)


def build_readme(one: Distribution) -> str:
    """Returns the README that the package index shows: no diagrams, and links that work anywhere."""
    return (
        f"# {one.name}\n\n{one.summary}. Part of [omnipipeline]({HOME}), which runs each stage of a model such as "
        "Qwen-Omni as a microservice and streams tensors from pod to pod.\n\n"
        + _console(f"pip install {one.name}")
        + (f"\n\n{one.start}\n" if one.start else "\n")
        + f"\nAll parts of a release have the same version. See the [documentation]({HOME}/docs).\n"
    )


def write_project(one: Distribution, root: Mapping[str, Any], source: Path, directory: Path) -> None:
    """Write a project that builds the distribution into `directory`, from the checkout at `source`."""
    for package in one.packages:
        shutil.copytree(
            source / package, directory / Path(package).name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    shutil.copy(source / "LICENSE", directory / "LICENSE")
    (directory / "README.md").write_text(build_readme(one), encoding="utf-8")
    (directory / "pyproject.toml").write_text(build_pyproject(one, root), encoding="utf-8")
