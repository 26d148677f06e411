"""Limits of payloads hold when a payload is made and when it is read; wrong limits are a configuration error."""

from __future__ import annotations

import pytest
import torch

from omni_stage.errors import ConfigurationError, InvalidTensorError
from omni_stage.payloads import AdditionalInformationPayload, PayloadLimits

LIMITS = {
    "dimensions": ({"max_dimensions": 1}, {"x": torch.zeros(2, 2)}),
    "dimension size": ({"max_dimension_size": 3}, {"x": torch.zeros(4)}),
    "tensor bytes": ({"max_tensor_bytes": 15}, {"x": torch.zeros(4)}),
    "entries": ({"max_entries": 1}, {"x": [1], "y": [1]}),
    "name length": ({"max_name_length": 3}, {"long": [1]}),
    "list length": ({"max_list_length": 1}, {"x": [1, 2]}),
    "text length": ({"max_text_length": 1}, {"x": ["ab"]}),
}


@pytest.mark.parametrize("name", LIMITS)
def test_each_limit_holds_on_both_ways(name):
    values, content = LIMITS[name]
    limits = PayloadLimits(**values)
    with pytest.raises(InvalidTensorError):
        AdditionalInformationPayload.from_mapping(content, limits)
    raw = AdditionalInformationPayload.from_mapping(content).to_bytes()
    with pytest.raises(InvalidTensorError):
        AdditionalInformationPayload.from_bytes(raw, limits)
    raised = PayloadLimits(**{key: value + 1 for key, value in values.items()})
    assert AdditionalInformationPayload.from_bytes(raw, raised).entries.keys() == content.keys()


@pytest.mark.parametrize(
    "values",
    [
        {"max_entries": 0},
        {"max_entries": -1},
        {"max_entries": 1.5},
        {"max_entries": True},
        {"max_entries": "9"},
        {"allow_non_finite": 1},
        {"unknown": 1},
    ],
    ids=str,
)
def test_wrong_limits_are_a_configuration_error(values):
    with pytest.raises(ConfigurationError):
        PayloadLimits.from_mapping(values)


def test_limits_from_a_mapping_keep_other_defaults():
    limits = PayloadLimits.from_mapping({"max_entries": 3})
    assert limits.max_entries == 3
    assert limits.max_tensor_bytes == PayloadLimits().max_tensor_bytes
