"""Orders the outputs of one engine step: requests that have just begun come first.

Handling a step of 64 requests keeps the event loop busy for milliseconds, and vLLM lists the oldest requests first. The
youngest requests would thus always be handled last. But the speech of a young request cannot begin without its first
rows, whereas later rows are not urgent. The new order also shortens the time to the first token of text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

FIRST_OUTPUTS: Final = 9
"""The output with the prompt's rows, and the eight after it. `service/edges/outbox.py` sends their rows immediately."""
_T = TypeVar("_T")


def order_step(outputs: Sequence[_T], count_before: Callable[[_T], int]) -> list[_T]:
    """Returns the outputs, with young requests first. Within young and old requests, the order is kept.

    `count_before` takes an output and returns how many outputs its request had before this step.
    """
    young: list[_T] = []
    others: list[_T] = []
    for output in outputs:
        (young if count_before(output) < FIRST_OUTPUTS else others).append(output)
    return young + others
