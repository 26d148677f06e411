"""Compiles a form as the engine does, and generates tokens with it to see what it costs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xgrammar as xgr

from omni_stage.forms.grammar import Rules, WrongFormError

STEP_S: Final = 0.15
"""CPU seconds that choosing the allowed tokens of one step may take in a trial. Near the end of a string with
maxLength, one step takes up to 0.07 s (150,000 tokens, two slow cores)."""
END_S: Final = 1.0
"""CPU seconds after which a step need not end."""
ALLOWANCE_S: Final = 0.3
PER_TOKEN_S: Final = 0.01
"""CPU seconds of one walk: an allowance, and so many for each token."""
WALK: Final = 40
"""Tokens of one walk through a grammar."""
_SAID: Final = re.compile(
    r"(?:min|max)\w+ (?:\d+ )?is (?:greater|less) than [a-zA-Z ]*[a-zA-Z]|minimum greater than maximum|"
    r"must be a whole number|at (?:position|line) \d+(?:, column \d+)?"
)
_WALKS: Final = ("longest", "random", "same", "shortest")


@dataclass(frozen=True, slots=True)
class Form:
    """What the text must fit, as vLLM names it."""

    kind: str
    """json, json_object, regex, grammar or structural_tag."""
    text: str
    """The schema, expression, grammar or tag; empty for json_object."""


def compile_form(compiler: xgr.GrammarCompiler, form: Form) -> xgr.CompiledGrammar:
    """Returns the compiled form. Raises WrongFormError if it is invalid; see `check_form` for the rest."""
    return _compile(compiler, _read(form))


def check_form(form: Form) -> xgr.Grammar:
    """Returns the form as a grammar. Raises WrongFormError if it is invalid, fits no text, or counts too far."""
    grammar = _read(form)
    Rules(grammar).check()
    return grammar


def _read(form: Form) -> xgr.Grammar:
    try:
        grammar = _READERS[form.kind](form.text)
    except (RuntimeError, ValueError, TypeError) as error:
        raise WrongFormError(f"it is invalid, or holds something that is not supported{_reason(error)}") from error
    return Rules(grammar).correct_strings() if form.kind in ("json", "json_object", "structural_tag") else grammar


def try_form(compiler: xgr.GrammarCompiler, tokens: Tokens, form: Form) -> int:
    """Compile a form and its slowest parts, and generate tokens with each. Returns the bytes of the compiled form.

    A part may lie behind a text that no walk here finds, but that a caller's prompt makes the model write. Raises
    WrongFormError.
    """
    grammar = check_form(form)
    compiled = _compile(compiler, grammar)
    size = int(compiled.memory_size_bytes)
    for walk in _WALKS:
        _walk(compiled, tokens, walk, whole=True)
    for part in Rules(grammar).parts():
        compiled = _compile(compiler, part)
        for walk in _WALKS:
            _walk(compiled, tokens, walk, whole=False)
    return size


def _read_ebnf(text: str) -> xgr.Grammar:
    if "::=" not in text:
        raise WrongFormError("a grammar consists of rules such as root ::= [a-z]+")
    return xgr.Grammar.from_ebnf(text)


_READERS: Final[dict[str, Callable[[str], xgr.Grammar]]] = {
    "json": xgr.Grammar.from_json_schema,
    "json_object": lambda _: xgr.Grammar.from_json_schema('{"type": "object"}'),
    "regex": xgr.Grammar.from_regex,
    "grammar": _read_ebnf,
    "structural_tag": lambda text: xgr.Grammar.from_structural_tag(json.loads(text)),
}


def _compile(compiler: xgr.GrammarCompiler, grammar: xgr.Grammar) -> xgr.CompiledGrammar:
    try:
        return compiler.compile_grammar(grammar)
    except RuntimeError as error:
        raise WrongFormError("it cannot be compiled") from error


def _reason(error: Exception) -> str:
    """Returns what xgrammar says of the mistake and its place, as far as that holds nothing of the form."""
    found = _SAID.search(str(error))
    return f" ({found[0]})" if found else ""


class Tokens:
    """The tokens of a vocabulary, for walks."""

    def __init__(self, info: xgr.TokenizerInfo, bound_step: Callable[[float], object] = lambda _: None) -> None:
        """`bound_step` is called with a number of CPU seconds before each step, after which the process may end, and
        with 0 after it."""
        self.bound_step = bound_step
        self.mask = xgr.allocate_token_bitmask(1, info.vocab_size)
        self.size = info.vocab_size
        self.stops = np.array(info.stop_token_ids, dtype=np.int64)
        self.lengths = np.zeros(info.vocab_size, np.int32)
        decoded = info.decoded_vocab
        self.lengths[: len(decoded)] = [len(token) for token in decoded]
        self.random = np.random.default_rng(0)

    def allowed(self) -> tuple[np.ndarray, bool]:
        """Returns the ids that the mask allows, without stop tokens; and whether it allows a stop token."""
        bits = np.unpackbits(self.mask[0].numpy().view(np.uint8), bitorder="little", count=self.size)
        may_end = bool(bits[self.stops].any())
        bits[self.stops] = 0
        return np.flatnonzero(bits), may_end

    def choose(self, ids: np.ndarray, walk: str, last: int) -> int:
        """Returns the next token of a walk."""
        if walk == "same" and last >= 0 and ids[min(int(np.searchsorted(ids, last)), len(ids) - 1)] == last:
            return last
        if walk in ("longest", "shortest"):
            lengths = self.lengths[ids]
            ids = ids[lengths == (lengths.max() if walk == "longest" else lengths.min())]
        return int(self.random.choice(ids))


def _walk(compiled: xgr.CompiledGrammar, tokens: Tokens, walk: str, *, whole: bool) -> None:
    """Generate tokens until the text is complete. `whole`: the grammar is a whole form, not a part of one."""
    matcher = xgr.GrammarMatcher(compiled)
    spent, last = 0.0, -1
    for step in range(1, WALK + 1):
        spent += _time_step(matcher, tokens, last)
        if spent > ALLOWANCE_S + PER_TOKEN_S * step:
            raise _too_slow(spent / step)
        ids, may_end = tokens.allowed()
        if not len(ids) and not may_end and whole:
            raise WrongFormError("no text fits the form: no token can follow some of the texts that it allows")
        if not len(ids):
            return
        last = tokens.choose(ids, walk, last)


def _time_step(matcher: Any, tokens: Tokens, last: int) -> float:
    """Take the last token and find the allowed next ones. Returns the CPU seconds of that."""
    began = time.thread_time()
    tokens.bound_step(END_S)
    if last >= 0 and not matcher.accept_token(last):
        raise WrongFormError("it allows a token that it does not accept")
    matcher.fill_next_token_bitmask(tokens.mask)
    tokens.bound_step(0)
    took = time.thread_time() - began
    if STEP_S < took < 2 * STEP_S:
        # The first use of memory takes time too: count the faster of two.
        began = time.thread_time()
        matcher.fill_next_token_bitmask(tokens.mask)
        took = min(took, time.thread_time() - began)
    if took > STEP_S:
        raise _too_slow(took)
    return took


def _too_slow(seconds: float) -> WrongFormError:
    return WrongFormError(
        f"one token of it takes {seconds * 1000:.0f} ms of CPU time; simplify it: fewer repetitions inside "
        "repetitions, no counts whose items can be divided in several ways"
    )
