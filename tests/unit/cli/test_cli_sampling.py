"""`omnipipe generate --sampling STAGE.KEY=VALUE`: the values' types, and the errors."""

from __future__ import annotations

from typing import Any

import pytest

from omni_cli.commands.generate import SamplingOptionError, parse_sampling

GOOD: list[tuple[list[str], dict[str, dict[str, Any]]]] = [
    ([], {}),
    (["thinker.temperature=0.5"], {"thinker": {"temperature": 0.5}}),
    (
        ["thinker.max_tokens=8", "talker.top_k=-1", "thinker.ignore_eos=true"],
        {"thinker": {"max_tokens": 8, "ignore_eos": True}, "talker": {"top_k": -1}},
    ),
    (["t.stop_token_ids=1,2"], {"t": {"stop_token_ids": [1, 2]}}),
    (["t.stop_token_ids=[3]"], {"t": {"stop_token_ids": [3]}}),
    (["t.stop=one, two"], {"t": {"stop": ["one, two"]}}),
    (['t.stop=["a","b=c"]'], {"t": {"stop": ["a", "b=c"]}}),
]


@pytest.mark.parametrize(
    ("options", "expected"), GOOD, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_values_get_the_types_of_the_contract(options: list[str], expected: dict[str, dict[str, Any]]) -> None:
    """Values get the types of the fields of SamplingDefaults."""
    assert parse_sampling(options) == expected


BAD = {
    "temperature=1": "give it as STAGE.KEY=VALUE",
    "thinker.temperature": "give it as STAGE.KEY=VALUE",
    "thinker.temperature=": "give it as STAGE.KEY=VALUE",
    "the-thinker.seed=1": "give it as STAGE.KEY=VALUE",
    "thinker.temprature=1": "temprature is not a sampling parameter; did you mean temperature?",
    "thinker.xyz=1": "xyz is not a sampling parameter; known: temperature, top_p",
    "thinker.maxTokens=1": "maxTokens is not a sampling parameter; did you mean max_tokens?",
    "thinker.temperature=hot": "input should be a valid number",
    "thinker.top_p=2": "input should be less than or equal to 1",
    "thinker.max_tokens=1.5": "input should be a valid integer",
    "thinker.stop_token_ids=a": "input should be a valid integer",
    'thinker.stop=["a"': "not a JSON list",
}


@pytest.mark.parametrize("option", BAD)
def test_wrong_option_is_named_with_what_is_known(option: str) -> None:
    with pytest.raises(SamplingOptionError) as caught:
        parse_sampling([option])
    assert str(caught.value).startswith(f"--sampling {option}: ")
    assert BAD[option] in str(caught.value)


def test_a_parameter_given_twice() -> None:
    with pytest.raises(SamplingOptionError, match=r"thinker\.seed is given twice"):
        parse_sampling(["thinker.seed=1", "thinker.seed=2"])
