"""Fields of the status that an older CRD does not have are found in the API server's error, and left out."""

from __future__ import annotations

from omni_operator.status.publish import LACKING_S, LackingFields

STATUS = {
    "readyStages": "1/1",
    "names": [{"name": "omni"}],
    "stages": [{"name": "talker", "scaling": "why", "desiredReplicas": 2}, {"name": "thinker"}],
}
ONE = "failed to create typed patch object (ns/omni; omnipipeline.io/v1alpha1, Kind=OmniPipeline): {}"
FIELD = "{}: field not declared in schema"


def test_every_field_of_an_error_is_left_out() -> None:
    lacking = LackingFields()
    assert lacking.learn(ONE.format(FIELD.format(".status.names")), 0.0)
    several = [FIELD.format(f'.status.stages[name="talker"].{name}') for name in ("scaling", "desiredReplicas")]
    assert lacking.learn(ONE.format("errors:\n  " + "\n  ".join(several)), 0.0)
    stages = [{"name": "talker"}, {"name": "thinker"}]
    assert lacking.strip(STATUS, 1.0) == {"readyStages": "1/1", "stages": stages}
    assert "names" in STATUS


def test_other_errors_name_no_field_and_fields_are_tried_again_later() -> None:
    lacking = LackingFields()
    assert not lacking.learn(ONE.format(FIELD.format(".spec.replicas")), 0.0)
    assert not lacking.learn("etcdserver: request timed out", 0.0)
    assert lacking.learn(ONE.format(FIELD.format(".status.stages[0].scaling")), 0.0)
    assert "scaling" not in lacking.strip(STATUS, LACKING_S - 1)["stages"][0]
    assert lacking.strip(STATUS, LACKING_S + 1) == STATUS
