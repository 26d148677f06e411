"""The order in which the outputs of one engine step are handled: first those of requests that have just begun.

A step of 64 requests keeps the event loop busy for milliseconds, and vLLM lists the requests in order of age. So the
youngest would always be last, although speech cannot begin without a request's first rows, and nobody waits for the
later ones. Their texts come first too, which shortens the time to the first token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

FIRST_OUTPUTS: Final = 9
"""The output with the prompt's rows, and the eight after it; `service/edges/pacing.py` sends those at once."""
_T = TypeVar("_T")


def order_step(outputs: Sequence[_T], count_before: Callable[[_T], int]) -> list[_T]:
    """Returns the outputs with those of young requests first; otherwise their order stays.

    `count_before` returns how many outputs an output's request has had before this step.
    """
    young: list[_T] = []
    others: list[_T] = []
    for output in outputs:
        (young if count_before(output) < FIRST_OUTPUTS else others).append(output)
    return young + others
