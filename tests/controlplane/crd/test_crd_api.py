"""The CRD as users and programs see it, through the real kubectl: explain, columns, defaults, status, merges."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator

import pytest
from tools.export_schemas import build_crd

from omni_proto.pipeline.types.scaling import MAX_REPLICAS
from omni_proto.pipeline.types.status import MAX_STAGE_MESSAGE
from support.controlplane.server.api import Api, ApiError, Manifest, eventually
from support.controlplane.server.api_server import ApiServer
from support.specs.spec_edits import LETTERS, YAML_WORDS, first, make, stages
from support.specs.spec_table import GOOD

pytestmark = pytest.mark.controlplane
_numbers = itertools.count()

STATUS: Manifest = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "reason": "ImagePullFailed",
            "message": "stage talker: the image cannot be pulled\nnext: check its name",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "observedGeneration": 1,
        }
    ],
    "readyStages": "2/3",
    "stages": [
        {
            "name": "thinker",
            "replicas": 1,
            "readyReplicas": 1,
            "revision": "abc1234",
            "endpoint": "omni-thinker-abc1234.default.svc:50051",
            "message": "",
        },
        {"name": "talker", "message": "x" * MAX_STAGE_MESSAGE},
    ],
    "url": "grpc://omni.default.svc:50051",
}


@pytest.fixture
def omni(api_server: ApiServer) -> Iterator[Api]:
    """Yields a client in a namespace that has the base pipeline."""
    client = api_server.create_namespace(f"crd-{next(_numbers)}")
    client.apply(make())
    yield client
    client.delete("OmniPipeline", "omni")


def test_crd_is_accepted_as_it_is(api_server: ApiServer) -> None:
    stored = api_server.admin.get("CustomResourceDefinition", "omnipipelines.omnipipeline.io")
    # The API server stores bounds as float64.
    kept, ours = (
        json.loads(json.dumps(crd["spec"]["versions"][0]["schema"]), parse_int=float) for crd in (stored, build_crd())
    )
    assert kept == ours, "the server dropped or changed something"
    conditions = {item["type"]: item["status"] for item in stored["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"


def test_largest_pipeline_fits_the_budget_of_the_rules(api_server: ApiServer) -> None:
    """The largest pipeline stays within the cost limit of evaluating CEL rules.

    The API server checks an estimate when the CRD is created, and the real cost when an object is written.
    """
    settings: Manifest = {}
    for change in GOOD["placement of one stage"]:
        document = make(change)
        settings = {key: document["spec"]["stages"][0][key] for key in document["spec"]["stages"][0]}
    for field in ("name", "component", "outputs"):
        del settings[field]
    settings["podLabels"] = {f"{number}.{'x' * 200}.example/{'y' * 60}": "z" * 63 for number in range(32)}
    settings["podAnnotations"] = dict.fromkeys(settings["podLabels"], "z" * 63)
    settings["resources"] = {"limits": {f"example.com/r{number}": "1000Gi" for number in range(16)}}
    settings["resources"]["requests"] = dict(settings["resources"]["limits"])
    document = make(stages(" ".join(f"{letter}{'x' * 19}" for letter in LETTERS[:16])))
    document["metadata"]["name"] = "n" * 33
    for stage in document["spec"]["stages"]:
        stage |= copy.deepcopy(settings)
    api_server.admin.apply(document, dry_run=True, strict=True)


def list_fields(schema: Manifest, path: str = "") -> Iterator[tuple[str, Manifest]]:
    """Yields each field of a schema below the top, except those of metadata."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from list_fields(field, f"{path}.{name}")
    for nested in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(nested, dict):
            yield from list_fields(nested, f"{path}[]")


def test_explain_says_something_about_every_field(api_server: ApiServer) -> None:
    # The API server publishes the CRD's OpenAPI schema, which kubectl reads, some time after it serves the resource.
    output = eventually(lambda: api_server.kubectl("explain", "omni.spec.stages").stdout)
    assert "One stage of the graph: one Deployment of pods, or one local process." in output
    assert "component\t<string> -required-\n    Id in the stage server's registry" in output
    assert "replicas\t<integer>\n    Number of pods. Local runs start one process. Default: 1, or what" in output
    # What kubectl reads. `explain --recursive` shows no descriptions.
    published = api_server.admin.call("GET", "/openapi/v3/apis/omnipipeline.io/v1alpha1")["components"]["schemas"]
    for kind in ("OmniPipeline", "OmniStage"):
        fields = dict(list_fields(published[f"io.omnipipeline.v1alpha1.{kind}"]))
        assert [path for path, field in fields.items() if not field.get("description")] == []
    mode = api_server.kubectl("explain", "omni.spec.stages.inputs.mode").stdout
    assert "ENUM:\n    Full\n    Stream" in mode


def test_columns_short_name_and_category(api_server: ApiServer, omni: Api) -> None:
    omni.patch("OmniPipeline", "omni", {"status": STATUS}, subresource="status")
    head, row = api_server.kubectl("get", "omni", namespace=omni.namespace).stdout.splitlines()
    assert head.split() == ["NAME", "READY", "REASON", "STAGES", "URL", "AGE"]
    assert row.split()[:5] == ["omni", "False", "ImagePullFailed", "2/3", "grpc://omni.default.svc:50051"]
    wide = api_server.kubectl("get", "omni", "-o", "wide", namespace=omni.namespace).stdout.splitlines()
    assert wide[0].split() == ["NAME", "READY", "REASON", "STAGES", "URL", "MODEL", "SUSPENDED", "AGE"]
    assert wide[1].split()[5:7] == ["hf://Qwen/Qwen2.5-Omni-7B", "false"]
    assert "omnipipeline.omnipipeline.io/omni" in api_server.kubectl("get", "all", namespace=omni.namespace).stdout


def test_defaults_are_filled_in(omni: Api) -> None:
    spec = omni.get("OmniPipeline", "omni")["spec"]
    assert spec["suspend"] is False
    assert spec["timeouts"] == {"request": 300}
    assert spec["rollout"] == {"strategy": "BlueGreen", "maxSurge": 1, "maxUnavailable": 0}
    assert spec["stages"][0] == {"name": "thinker", "component": "qwen2_5_omni/thinker", "outputs": ["Text"]}
    assert spec["stages"][2]["inputs"] == [{"from": "talker", "mode": "Full"}]


def test_status_is_kept_as_it_is_written_and_separate_from_the_spec(omni: Api) -> None:
    before = omni.get("OmniPipeline", "omni")
    changed = {"status": STATUS, "spec": {"suspend": True}}
    after = omni.patch("OmniPipeline", "omni", changed, subresource="status")
    assert after["status"] == STATUS
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"] == 1
    main = omni.patch("OmniPipeline", "omni", {"status": {"url": "x"}, "spec": {"suspend": True}})
    assert main["status"] == STATUS
    assert main["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"conditions": [{"type": "Ready", "status": "Maybe"}]}, "status.conditions[0].status"),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, "status.conditions[0].reason"),
        ({"stages": [{"name": "a"}, {"name": "a"}]}, "status.stages[1]"),
        ({"stages": [{"name": "a", "message": "x" * (MAX_STAGE_MESSAGE + 1)}]}, "status.stages[0].message"),
    ],
)
def test_wrong_status_is_refused(omni: Api, change: Manifest, field: str) -> None:
    with pytest.raises(ApiError) as caught:
        omni.patch("OmniPipeline", "omni", {"status": change}, subresource="status")
    assert field in caught.value.message


def test_a_scale_target_may_have_more_pods_than_it_asks_for(omni: Api) -> None:
    """The largest stage, in the midst of an update with maxSurge: 100%."""
    target = {"apiVersion": "omnipipeline.io/v1alpha1", "kind": "OmniStage", "metadata": {"name": "omni-talker"}}
    omni.apply(target | {"spec": {"replicas": MAX_REPLICAS}})
    omni.patch("OmniStage", "omni-talker", {"status": {"replicas": 2 * MAX_REPLICAS}}, subresource="status")
    with pytest.raises(ApiError, match="less than or equal to 1000"):
        omni.patch("OmniStage", "omni-talker", {"spec": {"replicas": MAX_REPLICAS + 1}})


def test_stages_of_two_managers_are_merged_by_name(omni: Api) -> None:
    """Another manager, such as an autoscaler, can own a single field of a single stage."""
    metadata = {"apiVersion": "omnipipeline.io/v1alpha1", "kind": "OmniPipeline", "metadata": {"name": "omni"}}
    replicas = {"stages": [{"name": "talker", "component": "qwen2_5_omni/talker", "replicas": 3}]}
    live = omni.apply({**metadata, "spec": {"model": make()["spec"]["model"], **replicas}}, manager="platform")
    assert [(stage["name"], stage.get("replicas")) for stage in live["spec"]["stages"]] == [
        ("thinker", None),
        ("talker", 3),
        ("token2wav", None),
    ]
    with pytest.raises(ApiError, match='conflict with "platform"'):
        omni.apply(make(lambda document: document["spec"]["stages"][1].update(replicas=2)), force=False)


def test_no_field_is_immutable(omni: Api) -> None:
    for case in ("two talkers", "pvc", "recreate", "one stage", "placement of all stages", "base"):
        changed = make(*GOOD[case])
        omni.apply({**changed, "metadata": {"name": "omni"}})


def test_plain_words_of_yaml_mean_the_same(api_server: ApiServer) -> None:
    """kubectl reads unquoted YAML scalars, such as `yes`, as YAML_WORDS says.

    test_pipeline_validation.py checks offline validation with the same table.
    """
    data = "".join(f"  k{number}: {word}\n" for number, word in enumerate(YAML_WORDS))
    text = f"apiVersion: omnipipeline.io/v1alpha1\nkind: OmniPipeline\nmetadata: {{name: a}}\nspec:\n{data}"
    arguments = ("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-")
    spec = json.loads(api_server.kubectl(*arguments, stdin=text).stdout)["spec"]
    assert [spec[f"k{number}"] for number in range(len(YAML_WORDS))] == list(YAML_WORDS.values())


def test_unknown_field_is_refused_by_kubectl_and_dropped_for_lax_clients(api_server: ApiServer, omni: Api) -> None:
    document = make(first(hostPath="/"))
    result = api_server.kubectl("apply", "-f", "-", stdin=document, namespace=omni.namespace, check=False)
    assert result.returncode != 0
    assert 'unknown field "spec.stages[0].hostPath"' in result.stderr
    assert "hostPath" not in omni.patch("OmniPipeline", "omni", {"spec": {"hostPath": "/"}})["spec"]
