"""From v1alpha1 to v1beta1 without a webhook (docs/adr/kubernetes.md, 0043), by the commands of docs/upgrade.md.

The CRD is a copy in a group of its own, so that the tests beside this one keep theirs.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from tools.export_schemas import build_crd

from support.controlplane.pipelines import build_pipeline
from support.controlplane.server.api import Api, ApiError, Manifest, eventually
from support.controlplane.server.api_server import ApiServer

pytestmark = pytest.mark.controlplane

GROUP = "next.omnipipeline.io"
CRD = f"omnipipelines.{GROUP}"
Write = Callable[[Manifest], None]


def build_versions(*names: str, storage: str) -> Manifest:
    """Returns the CRD with these versions of one schema, that of today."""
    crd = copy.deepcopy(build_crd())
    (today,) = crd["spec"]["versions"]
    crd["metadata"]["name"], crd["spec"]["group"] = CRD, GROUP
    crd["spec"]["names"].pop("categories")
    crd["spec"]["names"]["shortNames"] = ["nextomni"]
    crd["spec"]["versions"] = [{**copy.deepcopy(today), "name": name, "storage": name == storage} for name in names]
    return crd


def spec_properties(crd: Manifest, version: str) -> dict[str, Any]:
    (found,) = [one for one in crd["spec"]["versions"] if one["name"] == version]
    properties: dict[str, Any] = found["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return properties


@pytest.fixture
def write_crd(api_server: ApiServer) -> Iterator[Write]:
    """Yields a function that writes the CRD and waits until it is served. It is deleted at the end."""

    def write(crd: Manifest) -> None:
        live = api_server.admin.find("CustomResourceDefinition", CRD)
        if live is None:
            api_server.admin.create(crd)
        else:
            change = [{"op": "replace", "path": "/spec/versions", "value": crd["spec"]["versions"]}]
            api_server.admin.patch("CustomResourceDefinition", CRD, change)
        # A new version, or a new schema, is served a moment after the CRD is written.
        for one in crd["spec"]["versions"]:
            path = f"/apis/{GROUP}/{one['name']}/omnipipelines?limit=1"
            eventually(lambda path=path: answers(api_server.admin, path), why=path)

    yield write
    api_server.admin.delete("CustomResourceDefinition", CRD)
    eventually(lambda: api_server.admin.find("CustomResourceDefinition", CRD) is None, why="the CRD is deleted")


@pytest.fixture
def space(api_server: ApiServer, request: pytest.FixtureRequest) -> Api:
    return api_server.create_namespace(f"storage-{abs(hash(request.node.name)) % 10**8}")


def answers(admin: Api, path: str) -> bool:
    try:
        admin.call("GET", path)
    except ApiError as error:
        if error.code != 404:
            raise
        return False
    return True


def read(space: Api, version: str) -> Manifest:
    return space.call("GET", f"/apis/{GROUP}/{version}/namespaces/{space.namespace}/omnipipelines/omni")


def create(space: Api, version: str, **spec: Any) -> None:
    manifest = {**build_pipeline(**spec), "apiVersion": f"{GROUP}/{version}"}
    space.call("POST", f"/apis/{GROUP}/{version}/namespaces/{space.namespace}/omnipipelines", manifest)


def stored(space: Api) -> list[str]:
    versions: list[str] = space.get("CustomResourceDefinition", CRD)["status"]["storedVersions"]
    return versions


def test_pipelines_move_to_the_new_version_unchanged(api_server: ApiServer, space: Api, write_crd: Write) -> None:
    write_crd(build_versions("v1alpha1", storage="v1alpha1"))
    create(space, "v1alpha1", timeouts={"request": 60})
    before = read(space, "v1alpha1")
    # A release that serves both. Its operator may read either: the objects differ only in apiVersion.
    write_crd(build_versions("v1alpha1", "v1beta1", storage="v1beta1"))
    assert read(space, "v1beta1") == {**before, "apiVersion": f"{GROUP}/v1beta1"}
    assert stored(space) == ["v1alpha1", "v1beta1"]
    # The old version cannot go while an object may be stored in it.
    with pytest.raises(ApiError, match=r"must remain in spec\.versions"):
        write_crd(build_versions("v1beta1", storage="v1beta1"))
    # The commands of docs/upgrade.md: write every pipeline again, then say that no other version is stored.
    # kubectl keeps what it discovers, so it must not look before the new version is preferred.
    group = f"/apis/{GROUP}"
    eventually(lambda: space.call("GET", group)["preferredVersion"]["version"] == "v1beta1", why="discovery")
    live = api_server.kubectl("get", CRD, "--all-namespaces", "-o", "json").stdout
    assert {item["apiVersion"] for item in json.loads(live)["items"]} == {f"{GROUP}/v1beta1"}
    api_server.kubectl("replace", "-f", "-", stdin=live)
    patch = json.dumps({"status": {"storedVersions": ["v1beta1"]}})
    api_server.kubectl("patch", "crd", CRD, "--subresource=status", "--type=merge", "-p", patch)
    after = read(space, "v1beta1")
    assert after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    write_crd(build_versions("v1beta1", storage="v1beta1"))
    assert read(space, "v1beta1")["spec"] == before["spec"]
    old = f"/apis/{GROUP}/v1alpha1/omnipipelines?limit=1"
    eventually(lambda: not answers(space, old), why="the old version is gone")


def test_a_field_renamed_between_versions_is_lost_so_both_names_stay(space: Api, write_crd: Write) -> None:
    """Why both versions have one schema: without a webhook, the API server changes apiVersion and prunes the rest."""
    write_crd(build_versions("v1alpha1", storage="v1alpha1"))
    create(space, "v1alpha1", timeouts={"request": 60})

    def rename(properties: dict[str, Any], *, keep: bool) -> None:
        properties["requestTimeoutSeconds"] = {"type": "integer", "minimum": 1}
        if not keep:
            properties.pop("timeouts")

    crd = build_versions("v1alpha1", "v1beta1", storage="v1alpha1")
    new = [one for one in crd["spec"]["versions"] if one["name"] == "v1beta1"]
    new[0]["schema"]["openAPIV3Schema"]["properties"]["spec"].pop("x-kubernetes-validations", None)
    rename(spec_properties(crd, "v1beta1"), keep=False)
    write_crd(crd)
    eventually(lambda: "timeouts" not in read(space, "v1beta1")["spec"])
    # With both names in both versions, neither is lost.
    crd = build_versions("v1alpha1", "v1beta1", storage="v1beta1")
    for version in ("v1alpha1", "v1beta1"):
        rename(spec_properties(crd, version), keep=True)
    write_crd(crd)
    # A write before the new schema is in force would lose the field for good.
    eventually(lambda: read(space, "v1beta1")["spec"].get("timeouts") == {"request": 60}, why="both names are served")
    change = yaml.safe_load("spec: {requestTimeoutSeconds: 90}")
    path = f"/apis/{GROUP}/v1beta1/namespaces/{space.namespace}/omnipipelines/omni"

    def both() -> bool:
        space.call("PATCH", path, change, "application/merge-patch+json")
        specs = [read(space, version)["spec"] for version in ("v1alpha1", "v1beta1")]
        return {(spec["timeouts"]["request"], spec.get("requestTimeoutSeconds")) for spec in specs} == {(60, 90)}

    eventually(both, why="both names in both versions")
