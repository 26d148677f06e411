"""A vocabulary of 150,000 tokens: with a small one, even the most expensive structured output costs nothing."""

from __future__ import annotations

import itertools
import random
import string
from functools import cache

SIZE = 150_000
_FREQUENT = "etaoinshrdlucmfwypvbgkqjxz"


@cache
def large_vocabulary() -> tuple[str, ...]:
    """Returns the texts of the tokens, all different: short words, numbers, punctuation, long words, Chinese."""
    letters = string.ascii_lowercase
    short = ["".join(word) for length in (2, 3) for word in itertools.product(letters, repeat=length)]
    texts = dict.fromkeys([*short, *(f" {word}" for word in short), *map(str, range(10, 1000))])
    texts |= dict.fromkeys("".join(marks) for marks in itertools.product('{}[]":,. \n-_/<>()=', repeat=3))
    chosen = random.Random(1)
    while len(texts) < SIZE:
        kind = chosen.random()
        if kind < 0.8:
            common = _FREQUENT[: chosen.randint(5, 26)]
            text = chosen.choice(("", " ")) + "".join(chosen.choices(common, k=chosen.randint(4, 12)))
        elif kind < 0.9:
            text = "".join(chr(chosen.randint(0x4E00, 0x9FFF)) for _ in range(chosen.randint(1, 3)))
        else:
            text = "".join(chosen.choices(string.ascii_letters + string.digits + "_", k=chosen.randint(3, 9)))
        texts[text] = None
    return tuple(texts)
