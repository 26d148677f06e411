"""A form that costs too much in the engine's steps is given up; the masks of other requests are made all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xgrammar as xgr

from omni_stage.vllm_adapter.structured import STEP_S, MeteredGrammar, _Thread
from support.forms import many_tokens


@pytest.fixture(scope="module")
def info() -> xgr.TokenizerInfo:
    return many_tokens()


@pytest.fixture(scope="module")
def compiler(info: xgr.TokenizerInfo) -> xgr.GrammarCompiler:
    return xgr.GrammarCompiler(info, max_threads=1)


def metered(context: xgr.CompiledGrammar, info: xgr.TokenizerInfo) -> MeteredGrammar:
    return MeteredGrammar(vocab_size=info.vocab_size, matcher=xgr.GrammarMatcher(context), ctx=context)


def fill(*grammars: MeteredGrammar) -> Any:
    """Makes masks as vLLM's manager does, and returns them."""
    masks = xgr.allocate_token_bitmask(len(grammars), grammars[0].vocab_size)
    for row, grammar in enumerate(grammars):
        if not grammar.is_terminated():
            grammar.fill_bitmask(masks, row)
    return masks


def test_an_ordinary_form_masks_and_accepts(compiler: xgr.GrammarCompiler, info: xgr.TokenizerInfo) -> None:
    grammar = metered(compiler.compile_regex("ab+"), info)
    for token in b"abb":
        bits = np.unpackbits(fill(grammar)[0].numpy().view(np.uint8), bitorder="little")
        assert bits[token]
        assert grammar.accept_tokens("request", [token])
    assert not grammar.accept_tokens("request", [ord("c")])
    assert not grammar.given_up


def test_a_mask_that_takes_too_long_is_not_waited_for(compiler: xgr.GrammarCompiler, info: xgr.TokenizerInfo) -> None:
    slow, quick = (metered(compiler.compile_regex(r"(\w+ ?){1,20}"), info), metered(compiler.compile_regex("a+"), info))
    # From the second token on, each mask takes more than a second.
    slow.accept_tokens("slow", [ord("a")])
    assert not _Thread().run(lambda: fill(slow, quick), [slow, quick])
    assert slow.given_up
    assert slow.is_terminated()
    assert slow.accept_tokens("slow", [ord("%")])
    fresh = _Thread()
    assert fresh.run(lambda: fill(slow, quick), [slow, quick])
    masks = fresh.result()
    assert not quick.given_up
    assert np.unpackbits(masks[1].numpy().view(np.uint8), bitorder="little").sum() < info.vocab_size


def test_many_small_costs_end_a_form_too(compiler: xgr.GrammarCompiler, info: xgr.TokenizerInfo) -> None:
    """An ambiguous grammar: each token costs more than the one before."""
    grammar = metered(compiler.compile_grammar('root ::= root root root | "a" | ""'), info)
    for _ in range(2000):
        fill(grammar)
        grammar.accept_tokens("request", [ord("a")])
        if grammar.given_up:
            break
    assert grammar.given_up
    assert f"{STEP_S:g} s in one step" in grammar.describe()


def test_an_error_of_the_call_is_raised(info: xgr.TokenizerInfo) -> None:
    thread = _Thread()
    assert thread.run(lambda: 1 // 0, [])
    with pytest.raises(ZeroDivisionError):
        thread.result()
    assert thread.run(lambda: 3, [])
    assert thread.result() == 3
