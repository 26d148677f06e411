"""All inputs in the corpus of `make fuzz` pass. Each reached code that no earlier input did, or caused a failure."""

from __future__ import annotations

import random

import pytest
from checks.fuzz import form_targets
from checks.fuzz.fuzz_edge import CORPUS, FORMS_FROM, MEDIA_FROM, check_input
from checks.fuzz.media_targets import TARGETS


def test_nothing_in_the_corpus_is_a_crash() -> None:
    inputs = sorted(CORPUS.iterdir())
    assert len(inputs) > 50
    for path in inputs:
        check_input(path.read_bytes())


@pytest.mark.parametrize("number", range(len(TARGETS)), ids=[target.__name__ for target in TARGETS])
def test_damaged_media_are_refused_and_no_more(number: int) -> None:
    numbers = random.Random(number)
    for _ in range(150):
        check_input(bytes((MEDIA_FROM + number,)) + numbers.randbytes(numbers.randint(0, 60)))


@pytest.mark.parametrize("number", range(3), ids=[target.__name__ for target in form_targets.TARGETS])
def test_random_forms_are_refused_or_keep_their_promise(number: int) -> None:
    numbers = random.Random(number)
    # 0xE1 is a multiple of the number of targets.
    for _ in range(40):
        check_input(bytes((FORMS_FROM + 1 + number,)) + numbers.randbytes(numbers.randint(1, 20)))
