"""Voices are known by the checkpoint's own names in any case."""

from __future__ import annotations

import pytest
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerConfig

from omni_stage.errors import InvalidRequestError
from omni_stage.models.component.request import pick_voice
from omni_stage.models.qwen3_omni.checkpoint import read_codec_tokens


@pytest.mark.parametrize(
    ("wanted", "meant"), [("", "Ada"), ("ada", "Ada"), ("ADA", "Ada"), ("bob", "bob"), ("Bob", "Bob"), ("BOB", "Bob")]
)
def test_a_voice_in_any_case(wanted: str, meant: str) -> None:
    """Of names that differ only in case, the exact one is meant, otherwise the first."""
    assert pick_voice(wanted, ("Ada", "Bob", "bob")) == meant


def test_an_unknown_voice_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match="Ada, bob"):
        pick_voice("adam", ("Ada", "bob"))


@pytest.mark.parametrize("names", [["Ada", "ada", "ethan"], ["ada", "Ada", "ethan"], ["ethan", "ADA", "ada"]])
def test_speakers_that_differ_only_in_case(names: list[str]) -> None:
    """transformers looks for the name in lower case only, so that one is meant, in any order."""
    talker = Qwen3OmniMoeTalkerConfig(speaker_id={name: 1 if name == "ada" else 2 for name in names})
    assert dict(read_codec_tokens(talker, 2048).speakers) == {"ethan": 2, "ada": 1}
