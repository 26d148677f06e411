"""Names and labels of installations: of any version, under any name, and of several in one release."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.controlplane.charts.helm import CHART, Helm, Manifest, pick_one, selectors_of

pytestmark = pytest.mark.controlplane

LABEL = re.compile(r"(([A-Za-z0-9][-\w.]*)?[A-Za-z0-9])?", re.ASCII)
SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
OBJECT = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def render(helm: Helm, chart: Path, release: str = "omnipipeline", **values: Any) -> list[Manifest]:
    return helm.template(values, release=release, chart=chart)


def copy_chart(directory: Path, **facts: str) -> Path:
    """Returns a copy of the chart with other facts in Chart.yaml."""
    chart = directory / "omnipipeline"
    shutil.copytree(CHART, chart)
    file = chart / "Chart.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | facts))
    return chart


def build_parent(directory: Path, *aliases: str | None) -> Path:
    """Returns a chart that has the chart as a dependency once for each alias; None: without one."""
    parent = directory / "parent"
    (parent / "charts").mkdir(parents=True)
    copy_chart(parent / "charts")
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    dependencies = [
        {"name": "omnipipeline", "version": version, **({"alias": alias} if alias else {})} for alias in aliases
    ]
    facts = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": dependencies}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(facts))
    return parent


def all_labels(part: Any) -> list[tuple[str, str]]:
    """Returns every label and every pair of a selector."""
    if isinstance(part, list):
        return [pair for item in part for pair in all_labels(item)]
    if not isinstance(part, dict):
        return []
    found = [pair for name in ("labels", "matchLabels") for pair in (part.get(name) or {}).items()]
    return found + [pair for item in part.values() for pair in all_labels(item)]


def assert_legal(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        name = manifest["metadata"]["name"]
        assert (SERVICE if manifest["kind"] == "Service" else OBJECT).fullmatch(name), name
        if manifest["kind"] == "CustomResourceDefinition":
            manifest = manifest | {"spec": {}}
        for key, value in all_labels(manifest):
            assert len(value) <= 63, (key, value)
            assert LABEL.fullmatch(value), (key, value)


@pytest.mark.parametrize(
    "version",
    [
        "0.1.0+6f2a9c1d3e",
        "1.2.3-rc.1+sha.5114f85",
        "1.0.0-alpha+001",
        f"1.0.0+{'a' * 80}",
        "1.0.0+a.",
        "0.0.1-x-y-z.--",
    ],
)
def test_any_version_gives_legal_labels(helm: Helm, tmp_path: Path, version: str) -> None:
    """Flux appends +DIGEST to a chart's version by default."""
    chart = copy_chart(tmp_path, version=version.rstrip("."), appVersion=version)
    manifests = render(helm, chart, gateway={"enabled": True}, metrics={"serviceMonitor": {"enabled": True}})
    assert_legal(manifests)
    image = pick_one(manifests, "Pod")["spec"]["containers"][0]["image"]
    assert re.fullmatch(r"omnipipeline-operator:[\w][\w.-]{0,127}", image)


@pytest.mark.parametrize(
    "release", ["omni", "7b-omni", "my.release", "a" * 53, f"{'a' * 40}-omnipipeline", "9", "a.b-c.d"]
)
def test_any_name_of_a_release_gives_legal_names(helm: Helm, release: str) -> None:
    assert_legal(render(helm, CHART, release, gateway={"enabled": True, "autoscaling": {"enabled": True}}))


@pytest.mark.parametrize("name", ["true", "null", "on", "e1"])
def test_names_that_yaml_reads_as_another_type_stay_names(helm: Helm, name: str) -> None:
    """`assert_legal` refuses a name that is no text."""
    account = {"name": "123", "create": name == "true"}
    manifests = render(helm, CHART, "r", fullnameOverride=name, serviceAccount=account, watchNamespaces=["123"])
    assert_legal(manifests)
    bound = [subject["name"] for item in manifests for subject in item.get("subjects", [])]
    assert bound == [account["name"]] * 2


def test_any_alias_gives_legal_names(helm: Helm, tmp_path: Path) -> None:
    aliases = ("team-a", "Team_A", "7b", "-x-", "_", "omni", "a" * 60)
    values = {alias: {"gateway": {"enabled": True}} for alias in aliases}
    manifests = render(helm, build_parent(tmp_path, *aliases), **values)
    assert len(manifests) > 10 * len(aliases)
    assert_legal(manifests)


@pytest.mark.parametrize(
    ("release", "aliases"),
    [
        ("two", ("team-a", "team-b")),
        ("omnipipeline", ("team_a", "team-a")),
        ("two", (None, "omni")),
        ("omnipipeline", (None, "omni")),
        ("omnipipeline", ("omni", "pipeline")),
        ("two", (f"{'a' * 50}1", f"{'a' * 50}2")),
    ],
)
def test_installations_in_one_release_share_no_names_and_no_pods(
    helm: Helm, tmp_path: Path, release: str, aliases: tuple[str | None, ...]
) -> None:
    values = {alias or "omnipipeline": {"gateway": {"enabled": True}, "replicas": 2} for alias in aliases}
    manifests = render(helm, build_parent(tmp_path, *aliases), release, **values)
    names = [
        (item["kind"], item["metadata"]["name"]) for item in manifests if item["kind"] != "CustomResourceDefinition"
    ]
    users = [name for name in names if name[1] not in ("omnipipeline-edit", "omnipipeline-view")]
    assert len(set(users)) == len(users)
    pods = [item["spec"]["template"]["metadata"]["labels"] for item in manifests if item["kind"] == "Deployment"]
    assert len(pods) == 4
    for item in manifests:
        for selector in selectors_of(item):
            selected = [labels for labels in pods if selector.items() <= labels.items()]
            assert len(selected) == 1, (item["kind"], item["metadata"]["name"])
