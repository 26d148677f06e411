"""Places spoken words in the text that they say. Pure.

A voice speaks other words than are written: 27 is two words, a dash is none. How many each written word gives is
learned by reading it alone. In a few texts a word gives another number beside its neighbours; the places of the words
are then spread over the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate
from typing import Final

_WORD: Final = re.compile(r"\S+")


def place_words(text: str, count: Callable[[str], int], spoken: int) -> list[int]:
    """Returns, for each spoken word, how many characters of the text have been said at its end.

    count: returns how many spoken words a written word gives alone. spoken: number of spoken words of the text. A
    written word has been said once all its spoken words have been.
    """
    words = list(_WORD.finditer(text))
    counts = list(accumulate(count(word[0]) for word in words))
    if not words or not counts[-1]:
        return [0] * (spoken - 1) + [len(text)] * min(1, spoken)
    found, said, place = [], 0, 0
    for number in range(1, spoken + 1):
        while place < len(words) and counts[place] * spoken <= number * counts[-1]:
            said = words[place].end()
            place += 1
        found.append(said)
    return found
