"""Voices by their own names and by aliases."""

from __future__ import annotations

import pytest

from omni_gateway.entries.pipelines import list_aliases, pick_voice
from omni_gateway.errors import InvalidRequestError


def test_an_alias_of_a_voice_that_the_checkpoint_lacks_is_not_recommended() -> None:
    aliases = {"alloy": "Chelsie", "echo": "Cherry"}
    assert pick_voice("alloy", ["Chelsie", "Ethan"], aliases, param="voice") == "Chelsie"
    with pytest.raises(InvalidRequestError) as caught:
        pick_voice("echo", ["Chelsie", "Ethan"], aliases, param="voice")
    assert str(caught.value) == "The voice 'echo' is unknown; use Chelsie, Ethan, alloy."


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ("ada", "Ada"),
        ("ADA", "Ada"),
        ("bob", "bob"),
        ("BOB", "Bob"),
        ("alloy", "Ada"),
        ("Alloy", "bob"),
        ("ALLOY", "bob"),
        ("echo", "bob"),
        ("Bob", "Bob"),
        ("", ""),
    ],
)
def test_voice_names_are_matched_case_insensitively(wanted: str, meant: str) -> None:
    """An exact name goes first, then a voice, then an alias; of names that differ only in case, always the same one."""
    voices, aliases = ["Ada", "Bob", "bob"], {"alloy": "ADA", "ALLOY": "bob", "Echo": "bob", "Bob": "Ada"}
    assert pick_voice(wanted, voices, aliases, param="voice") == meant
    assert list_aliases(aliases, voices) == {"Ada": ["Bob", "alloy"], "bob": ["ALLOY", "Echo"]}
