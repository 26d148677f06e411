"""Measures what each request's form costs in the engine's steps, and gives up a form that costs too much.

In each step, xgrammar finds the tokens that each form allows. This work is done on a thread of its own: xgrammar
releases Python's interpreter lock, so the step can stop waiting for it. The form is then given up: its request ends
with an error, and the thread ends when xgrammar returns. All other requests continue.

Private interfaces of vLLM 0.32 (v1/structured_output): `StructuredOutputManager` (`grammar_init`, `grammar_bitmask`,
`backend`), which the engine core constructs by name, and `XgrammarBackend` and `XgrammarGrammar`, whose compiling,
masks and accepted tokens are replaced or measured.

Reads the form from vLLM's parameters, and writes it back as xgrammar must get it: `StructuredOutputsParams`
(sampling_params.py), and `choice_as_grammar` (v1/structured_output/utils.py, private), with which vLLM's own check
turns a choice into a grammar.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
import xgrammar as xgr
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar, StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend, XgrammarGrammar
from vllm.v1.structured_output.utils import choice_as_grammar

from omni_stage.errors import InvalidRequestError
from omni_stage.forms.regex import UnsupportedRegexError, check_regex
from omni_stage.forms.schema import UnsupportedSchemaError, admit_schema
from omni_stage.forms.trial import Form, compile_form
from omni_stage.forms.trial_pool import TRIALS
from omni_stage.process.background import yield_cores


def read_params(params: StructuredOutputsParams, field: str) -> Form:
    """Returns the form that the engine will compile, and sets it in `params`.

    Raises InvalidRequestError with `field` if it holds something that would not be enforced.
    """
    try:
        return _read(params)
    except UnsupportedSchemaError as error:
        raise InvalidRequestError(str(error), field=field) from error
    except UnsupportedRegexError as error:
        raise InvalidRequestError(f"the regular expression cannot be enforced: {error}", field=field) from error


def _read(params: StructuredOutputsParams) -> Form:
    if params.json is not None:
        schema = json.loads(params.json) if isinstance(params.json, str) else params.json
        params.json = json.dumps(admit_schema(schema), ensure_ascii=False)
        return Form("json", params.json)
    if params.json_object:
        return Form("json_object", "")
    if params.regex is not None:
        params.regex = check_regex(params.regex, in_json=False)
        return Form("regex", params.regex)
    if params.choice is not None:
        params.grammar, params.choice = choice_as_grammar(list(params.choice)), None
    if params.grammar is not None:
        return Form("grammar", params.grammar)
    params.structural_tag = json.dumps(_admit_tags(json.loads(params.structural_tag or "{}")), ensure_ascii=False)
    return Form("structural_tag", params.structural_tag)


def _admit_tags(value: Any) -> Any:
    """Returns a part of a structural tag, with its schemas and expressions as xgrammar must get them."""
    if isinstance(value, list):
        return [_admit_tags(item) for item in value]
    if not isinstance(value, dict):
        return value
    read = {name: item if name in ("json_schema", "schema") else _admit_tags(item) for name, item in value.items()}
    for name in ("json_schema", "schema"):
        if isinstance(read.get(name), dict):
            read[name] = admit_schema(read[name])
    if read.get("type") == "regex" and isinstance(read.get("pattern"), str):
        read["pattern"] = check_regex(read["pattern"], in_json=False)
    return read


STEP_S: Final = 0.25
"""CPU seconds that one form may take in one step."""
ALLOWANCE_S: Final = 1.0
PER_TOKEN_S: Final = 0.01
"""CPU seconds that one form may take in all: an allowance, and so many for each token."""
_COMPILING: Final = threading.BoundedSemaphore(TRIALS)
"""Bounds the memory of compiling: each form stayed within forms/worker.py's WORK_BYTES when it was tried."""
_LOOK_S: Final = 0.02
"""Interval at which a step looks whether a form takes too long."""


class _GivenUpError(Exception):
    """The form of this mask was given up while the mask was made."""


class MeteredGrammar(XgrammarGrammar):
    """A form of one request, with the CPU time that it has used."""

    spent_s = 0.0
    steps = 0
    longest_s = 0.0
    given_up = False
    _running: tuple[int, float] | None = None
    """The thread that makes a mask now, and the CPU time at which it began."""

    def fill_bitmask(self, bitmask: torch.Tensor, idx: int) -> None:
        """Write the allowed tokens of the next step into a row."""
        row = xgr.allocate_token_bitmask(1, self.vocab_size)
        began = time.thread_time()
        self._running = (threading.get_ident(), began)
        try:
            self.matcher.fill_next_token_bitmask(row)
        finally:
            self._running = None
        if self.given_up:
            # The step did not wait for this.
            raise _GivenUpError
        self._note(time.thread_time() - began)
        bitmask[idx].copy_(row[0])

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advance by the tokens that were sampled. Returns whether the form allows them."""
        if self.given_up:
            return True
        began = time.thread_time()
        accepted = bool(super().accept_tokens(request_id, tokens))
        self.steps += len(tokens)
        self._note(time.thread_time() - began)
        return accepted

    def is_terminated(self) -> bool:
        """Returns whether the text is complete. A form that was given up constrains nothing any more."""
        return self.given_up or bool(super().is_terminated())

    @property
    def is_overdue(self) -> bool:
        """Whether a mask is being made that has already taken too long."""
        running = self._running
        if running is None or self.given_up:
            return False
        try:
            clock = time.pthread_getcpuclockid(running[0])
            return time.clock_gettime(clock) - running[1] > STEP_S
        except (OSError, OverflowError):  # the thread has just ended
            return False

    def _note(self, seconds: float) -> None:
        self.spent_s += seconds
        self.longest_s = max(self.longest_s, seconds)
        if self.longest_s > STEP_S or self.spent_s > ALLOWANCE_S + PER_TOKEN_S * self.steps:
            self.given_up = True

    def describe(self) -> str:
        """Returns what the form has cost, and the remedy."""
        return (
            f"the form of structured output cost {self.spent_s:.2f} s of CPU time in {self.steps} tokens (at most "
            f"{STEP_S:g} s in one step, and {ALLOWANCE_S:g} s and {PER_TOKEN_S * 1000:g} ms per token in all); "
            "simplify it: fewer repetitions inside repetitions"
        )


class MeteredBackend(XgrammarBackend):
    """vLLM's backend, which compiles a form as it was tried (omni_stage/forms/trial.py)."""

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: set[int] | None = None
    ) -> StructuredOutputGrammar:
        """Returns the compiled form. Runs on a thread that only compiles. Raises WrongFormError."""
        # Compiling may take seconds, and the engine's steps have priority.
        yield_cores()
        with _COMPILING:
            context = compile_form(self.compiler, Form(request_type.name.lower(), grammar_spec))
        return MeteredGrammar(
            matcher=xgr.GrammarMatcher(
                context,
                override_stop_tokens=list(stop_token_ids) if stop_token_ids else None,
                max_rollback_tokens=self.num_speculative_tokens,
            ),
            vocab_size=self.vocab_size,
            ctx=context,
        )

    def describe_tokenizer(self) -> bytes:
        """Returns xgrammar's information about the tokenizer, as JSON."""
        return self.compiler.compile_grammar('root ::= ""').tokenizer_info.serialize_json().encode()


class MeteredManager(StructuredOutputManager):
    """vLLM's manager of the forms of all requests, with a limit on their cost."""

    backend: Any
    _masks: _Thread | None = None

    @classmethod
    def adopt(cls, manager: StructuredOutputManager) -> None:
        """Give the engine core's manager these methods. vLLM has no setting for its class, and the engine core and the
        scheduler both keep the same object."""
        manager.__class__ = cls

    def grammar_init(self, request: Request) -> None:
        """Begin to compile the request's form."""
        if self.backend is None and request.structured_output_request is not None:
            vocab_size = self.vllm_config.model_config.get_vocab_size()
            self.backend = MeteredBackend(self.vllm_config, tokenizer=self.tokenizer, vocab_size=vocab_size)
        super().grammar_init(request)

    def grammar_bitmask(self, requests: dict[str, Request], ids: list[str], spec: dict[str, list[int]]) -> Any:
        """Returns a mask of the allowed tokens for each request. A form that takes too long is given up."""
        grammars = [grammar for name in ids if (grammar := grammar_of(requests[name])) is not None]
        make = super().grammar_bitmask
        while True:
            if self._masks is None:
                self._masks = _Thread()
            if self._masks.run(lambda: make(requests, ids, spec), grammars):
                return self._masks.result()
            self._masks = None


def grammar_of(request: Request) -> MeteredGrammar | None:
    """Returns the request's compiled form; None if it has none."""
    wanted = request.structured_output_request
    grammar = None if wanted is None else wanted.grammar
    return grammar if isinstance(grammar, MeteredGrammar) else None


class _Thread:
    """Runs one call at a time. Abandoned if a call takes too long."""

    def __init__(self) -> None:
        self._begin, self._ended = threading.Event(), threading.Event()
        self._call: Callable[[], Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._abandoned = False
        threading.Thread(target=self._serve, name="form-masks", daemon=True).start()

    def run(self, call: Callable[[], Any], grammars: Iterable[MeteredGrammar]) -> bool:
        """Returns whether the call ended. If not, the grammar that took too long is given up."""
        self._call = call
        self._ended.clear()
        self._begin.set()
        while not self._ended.wait(_LOOK_S):
            for grammar in grammars:
                if grammar.is_overdue:
                    grammar.given_up = True
                    self._abandoned = True
                    self._begin.set()
                    return False
        return True

    def result(self) -> Any:
        """Returns what the last call returned, or raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def _serve(self) -> None:
        while True:
            self._begin.wait()
            self._begin.clear()
            call, self._call = self._call, None
            if call is None:
                return
            self._result, self._error = None, None
            try:
                self._result = call()
            except _GivenUpError:
                return
            except BaseException as error:  # noqa: BLE001 - raised again in `result`
                self._error = error
            if self._abandoned:
                return
            self._ended.set()
