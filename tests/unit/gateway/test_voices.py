"""Voices by their own names and by aliases."""

from __future__ import annotations

import pytest

from omni_gateway.errors import InvalidRequestError
from omni_gateway.openai.voices import pick_voice


def test_an_alias_of_a_voice_that_the_checkpoint_lacks_is_not_recommended() -> None:
    aliases = {"alloy": "Chelsie", "echo": "Cherry"}
    assert pick_voice("alloy", ["Chelsie", "Ethan"], aliases, param="voice") == "Chelsie"
    with pytest.raises(InvalidRequestError) as caught:
        pick_voice("echo", ["Chelsie", "Ethan"], aliases, param="voice")
    assert str(caught.value) == "The voice 'echo' is unknown; use Chelsie, Ethan, alloy."
