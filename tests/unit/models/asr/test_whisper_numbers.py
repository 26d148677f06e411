"""Numbers of a Whisper checkpoint on which its windows depend: those that are not served are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from omni_stage.errors import ConfigurationError
from omni_stage.models.asr.vocabulary import check_numbers
from support.tables import each_row

LARGE = {"num_mel_bins": 128, "max_source_positions": 1500}


@each_row(
    "config, extractor",
    [
        ({}, {}),
        (LARGE, {}),
        (LARGE, {"feature_size": 128, "sampling_rate": 16000, "hop_length": 160, "chunk_length": 30, "n_fft": 400}),
    ],
)
def test_published_numbers_are_served(config: dict[str, Any], extractor: dict[str, Any]) -> None:
    check_numbers(config, extractor)


@each_row(
    "config, extractor, says",
    [
        ({"max_source_positions": 750}, {}, "max_source_positions is 750"),
        ({}, {"chunk_length": 15}, "chunk_length is 15"),
        ({}, {"hop_length": 320}, "hop_length is 320"),
        ({}, {"sampling_rate": 8000}, "sampling_rate is 8000"),
        ({}, {"sampling_rate": "16000"}, "sampling_rate is 16000"),
        (LARGE, {"feature_size": 80}, "feature_size is 80"),
        ({"num_mel_bins": 80}, {"feature_size": 128}, "feature_size is 128"),
    ],
)
def test_other_numbers_are_refused_by_name(config: dict[str, Any], extractor: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        check_numbers(config, extractor)
