"""The inputs that `make fuzz` keeps: each reached code that no other did, or once broke something."""

from __future__ import annotations

from fuzz.fuzz_edge import CORPUS, check_input


def test_nothing_in_the_corpus_is_a_crash() -> None:
    inputs = sorted(CORPUS.iterdir())
    assert len(inputs) > 50
    for path in inputs:
        check_input(path.read_bytes())
