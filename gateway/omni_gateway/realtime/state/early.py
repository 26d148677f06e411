"""An answer that is begun while the user may only hesitate, so that it is there when the turn is over. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from omni_gateway.realtime.state.effects import Ask, Effect, Stop
from omni_gateway.realtime.state.items import Item
from omni_gateway.realtime.state.prompt import Prompt
from omni_gateway.realtime.state.response import Response

MAX_EARLY: Final = 2
"""Answers that are begun early in one turn of the user: after that, one is begun when
the turn is over, so that a turn wastes the work of two at most."""


@dataclass(slots=True)
class EarlyAnswer:
    """The answer, and what it was asked from."""

    response: Response
    item: Item
    """The user's turn. No conversation has it yet."""
    end_ms: int
    """End of its audio."""
    prompt: Prompt
    heard: list[str] = field(init=False)
    """What the prompt's audio was known to say."""

    def __post_init__(self) -> None:
        self.heard = [one.text for one in self.prompt.audio]

    def fits(self, prompt: Prompt) -> bool:
        """Returns whether an answer to this prompt is the same."""
        return prompt == self.prompt and [one.text for one in prompt.audio] == self.heard


class EarlyAnswers:
    """Those of a session, of which there is one at most."""

    def __init__(self) -> None:
        self.answer: EarlyAnswer | None = None
        self.count = 0
        """How many were begun in the user's turn."""

    @property
    def held_bytes(self) -> int:
        """Memory of the user's turn, which the input buffer holds too."""
        return self.answer.item.held_bytes if self.answer else 0

    def begin(self, answer: EarlyAnswer) -> Iterator[Effect]:
        """Begin one, unless the turn has had enough of them."""
        if self.answer is None and self.count < MAX_EARLY:
            self.answer, self.count = answer, self.count + 1
            yield Ask(answer.response.id, answer.prompt, answer.response.config, is_early=True)

    def drop(self) -> Iterator[Effect]:
        """Stop the answer, if there is one."""
        answer, self.answer = self.answer, None
        if answer is not None:
            yield Stop(answer.response.id)

    def take(self, prompt: Prompt) -> Response | None:
        """Returns the response, if it answers this prompt."""
        answer = self.answer
        if answer is None or not answer.fits(prompt):
            return None
        self.answer = None
        return answer.response
