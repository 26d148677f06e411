"""The API server with our CRD and `omnipipe validate` accept the same pipelines, and report the same wrong field."""

from __future__ import annotations

import json

import pytest

from omni_cli.commands.render import render_children
from omni_operator.desired.build_settings import BuildSettings
from omni_operator.rollout.decide import parse_live_pipeline
from omni_proto.pipeline import PipelineError
from omni_proto.pipeline.read.offline import fill_in, parse_checked
from support.controlplane.server.api import ApiError, Manifest, path_of
from support.controlplane.server.api_server import ApiServer
from support.specs.spec_mutations import mutated
from support.specs.spec_table import BAD, GOOD, make

pytestmark = pytest.mark.controlplane
DRY_RUN = f"{path_of('OmniPipeline', 'default')}?dryRun=All&fieldValidation=Strict"


def create(server: ApiServer, document: Manifest) -> Manifest:
    return server.admin.call("POST", DRY_RUN, document)


def test_the_table_is_large_enough() -> None:
    assert len(BAD) >= 60
    assert len(GOOD) >= 20


def test_the_api_server_refuses_and_says_why(api_server: ApiServer, subtests: pytest.Subtests) -> None:
    for name, bad in BAD.items():
        with subtests.test(name):
            with pytest.raises(ApiError) as caught:
                create(api_server, make(*bad.edits))
            assert caught.value.code in (400, 422)
            assert bad.field in caught.value.message
            assert bad.message in caught.value.message
            assert "failed rule" not in caught.value.message, "a messageExpression could not be evaluated"


def test_the_api_server_stores_what_offline_validation_fills_in(
    api_server: ApiServer, subtests: pytest.Subtests
) -> None:
    for name, edits in GOOD.items():
        with subtests.test(name):
            stored = create(api_server, make(*edits))
            assert stored["spec"] == fill_in(make(*edits))["spec"]
            # So `omnipipe render` of the file prints the children that the operator builds, with the same hashes.
            from_file = parse_checked(json.dumps(make(*edits)))
            stored["metadata"]["generation"] = from_file.metadata.generation
            children = render_children(parse_live_pipeline(stored), "default", BuildSettings())
            assert children == render_children(from_file, "default", BuildSettings())


@pytest.mark.parametrize("seed", range(3))
def test_verdicts_are_equal_on_random_edits(api_server: ApiServer, seed: int) -> None:
    accepted = 0
    for document in mutated(seed, 100):
        try:
            parse_checked(json.dumps(document))
            offline = ""
        except PipelineError as error:
            offline = str(error)
        try:
            create(api_server, document)
            server = ""
        except ApiError as error:
            server = error.message
        assert bool(server) == bool(offline), f"API server: {server or 'accepted'}\noffline: {offline or 'accepted'}"
        accepted += not server
    assert 5 <= accepted <= 60, "some edits must be accepted and some rejected"


@pytest.mark.parametrize(
    "change", [{"apiVersion": "omnipipeline.io/v1"}, {"kind": "Pipeline"}, {"kind": None}, {"apiVersion": None}]
)
def test_objects_of_another_kind_are_refused_by_both(api_server: ApiServer, change: Manifest) -> None:
    document = {name: value for name, value in {**make(), **change}.items() if value is not None}
    with pytest.raises(ApiError):
        create(api_server, document)
    with pytest.raises(PipelineError):
        parse_checked(json.dumps(document))
