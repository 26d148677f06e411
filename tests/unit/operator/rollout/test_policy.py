"""The administrator's policy: a pipeline that sets a forbidden field is refused, and what serves stays."""

from __future__ import annotations

from typing import Any

import pytest

from omni_operator.process.settings import OperatorSettingsError, parse_settings
from omni_operator.rollout.policy import FORBIDDABLE, check_policy
from omni_proto.pipeline import PipelineError
from support.operator.operator_pipelines import make_single


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"env": [{"name": "A"}]}, "spec.stages[0].env"),
        ({"serviceAccountName": "admin"}, "spec.stages[0].serviceAccountName"),
        ({"podSecurityContext": {}}, "spec.stages[0].podSecurityContext"),
        ({"spec": {"defaults": {"schedulerName": "volcano"}}}, "spec.defaults.schedulerName"),
        ({"spec": {"entry": {"service": {"type": "LoadBalancer"}}}}, "spec.entry.service"),
        ({"spec": {"entry": {"route": {"ingress": {"host": "a.example"}}}}}, "spec.entry.route"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_forbidden_field_is_named(fields: dict[str, Any], path: str) -> None:
    pipeline = make_single(**fields)
    check_policy(pipeline, ("image", "affinity"), "ns/demo")
    with pytest.raises(PipelineError) as caught:
        check_policy(pipeline, tuple(FORBIDDABLE), "ns/demo")
    (problem,) = [item for item in caught.value.problems if not item.field.endswith("image")]
    assert problem.field == path
    assert "is forbidden in this cluster by the operator's setting forbidden-fields" in problem.message


def test_the_setting() -> None:
    settings = parse_settings(["--forbidden-fields", "env,envFrom,entry.route"], {})
    assert settings.forbidden_fields == ("env", "envFrom", "entry.route")
    with pytest.raises(
        OperatorSettingsError, match=r"--forbidden-fields names 'envs', but can name only image, imageP"
    ):
        parse_settings(["--forbidden-fields", "envs"], {})


def test_extra_engine_args_need_the_administrators_setting() -> None:
    pipeline = make_single(extraEngineArgs={"optimization_level": 2})
    with pytest.raises(PipelineError) as refused:
        check_policy(pipeline, parse_settings([], {}).policy, "models/omni")
    (problem,) = refused.value.problems
    assert problem.field == "spec.stages[0].extraEngineArgs"
    assert "allow-extra-engine-args" in problem.message
    check_policy(pipeline, parse_settings(["--allow-extra-engine-args"], {}).policy, "models/omni")
