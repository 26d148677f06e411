"""Renders conversations with a checkpoint's chat template, which is a program whose input callers choose."""

from __future__ import annotations

import inspect
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from jinja2.defaults import DEFAULT_NAMESPACE
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from omni_stage.errors import InvalidRequestError
from omni_stage.models.component.prompt import UserPrompt, is_light_argument
from omni_stage.models.shared.text.template_worker import describe_failure, render

ARGUMENTS_FIELD: Final = "start.chat.template_arguments"
_MAX_REASON_CHARS: Final = 200
_SUPPLIED: Final = frozenset(
    {
        "messages",
        *inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters,
        *inspect.signature(render_jinja_template).parameters,
        *PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES,
        *DEFAULT_NAMESPACE,
        *("raise_exception", "strftime_now"),
        *("self", "super", "loop", "caller", "varargs", "kwargs"),
    }
)
"""Variables and functions that transformers and Jinja supply to each template, and arguments of their functions."""


class ChatTemplate:
    """The chat template of a tokenizer. Safe to use from several threads."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._process = TemplateProcess()

    @property
    def exists(self) -> bool:
        """Whether the checkpoint has a chat template."""
        return bool(getattr(self._tokenizer, "chat_template", None))

    def source(self, tools: list[dict[str, Any]] | None = None) -> str:
        """Returns the template that transformers uses for a conversation with these tools."""
        return str(self._tokenizer.get_chat_template(tools=tools))

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Raises InvalidRequestError for an argument that would replace what the template gets from elsewhere."""
        special = self._tokenizer.special_tokens_map
        for name in arguments:
            if name in _SUPPLIED or name in special:
                raise InvalidRequestError(
                    f"{name} is not an argument of a chat template: it is set for every conversation; leave it out",
                    field=f"{ARGUMENTS_FIELD}.{name}",
                )

    def render(
        self,
        prompt: UserPrompt,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        """Returns the conversation as text, with the beginning of the assistant's reply.

        `messages`: the prompt's messages as the template reads them. A large conversation, and one with arguments that
        may be loop counts, is rendered in a process of its own, with bounded time and memory.
        Raises InvalidRequestError with the template's own reason, if it gives one.
        """
        arguments = dict(prompt.template_arguments)
        self.check_arguments(arguments)
        answer = self._answer(prompt, messages, tools, arguments)
        text = answer.get("text")
        if isinstance(text, str):
            return text
        if answer["error"] in TOO_COSTLY:
            is_arguments = not all(map(is_light_argument, arguments.values()))
        else:
            # The arguments are at fault unless the template fails in the same way without them.
            is_arguments = bool(arguments) and self._answer(prompt, messages, tools, {}) != answer
        raise _refusal(str(answer["error"]), str(answer["reason"]), is_arguments=is_arguments)

    def _answer(
        self,
        prompt: UserPrompt,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        arguments: Mapping[str, Any],
    ) -> dict[str, Any]:
        variables = {
            **self._tokenizer.special_tokens_map,
            "messages": list(messages),
            "tools": tools,
            "documents": None,
            "add_generation_prompt": True,
            **arguments,
        }
        if not prompt.is_light:
            return self._process.render(self.source(tools), variables)
        try:
            return {"text": render(self.source(tools), variables)}
        except Exception as error:  # noqa: BLE001 - a template is a program, and may fail with any error
            return describe_failure(error)


def _refusal(error: str, reason: str, *, is_arguments: bool) -> InvalidRequestError:
    field = ARGUMENTS_FIELD if is_arguments else "start.chat"
    if reason:
        text = " ".join(reason.split())
        return InvalidRequestError(f"the checkpoint's chat template says: {text[:_MAX_REASON_CHARS]}", field=field)
    if error in TOO_COSTLY:
        return InvalidRequestError(
            "the checkpoint's chat template takes too much time or memory for "
            f"{'these template arguments' if is_arguments else 'this conversation'}; send less",
            field=field,
        )
    if is_arguments:
        return InvalidRequestError(
            f"the checkpoint's chat template refused the template arguments ({error}); leave them out", field=field
        )
    return InvalidRequestError(
        f"the checkpoint's chat template refused the messages (roles and their order) or the tools ({error}); most "
        "templates want user and assistant messages in turns, and tools with descriptions",
        field=field,
    )


_CPU_S: Final = 1.0
_WALL_S: Final = 10.0
"""Processes share cores, so a job may need several times its CPU seconds."""
_START_S: Final = 60.0
_BYTES: Final = 256 << 20
"""Memory of a job, in addition to several copies of its input."""
_COPIES: Final = 16
TOO_COSTLY: Final = frozenset({"TemplateTooSlowError", "MemoryError", "OverflowError", "RecursionError"})
"""Names of the errors of a template that was stopped because it takes too much."""

_log = logging.getLogger(__name__)


class TemplateProcess:
    """Renders templates in one process, which starts on first use. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, template: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer of template_worker.py. `variables`: what JSON can hold."""
        given = json.dumps(variables)
        job = {"template": template, "seconds": _CPU_S, "bytes": _BYTES + _COPIES * len(given)}
        line = f'{json.dumps(job)[:-1]}, "variables": {given}}}\n'.encode()
        with self._lock:
            process, within_s = self._process, _WALL_S
            if process is None or process.poll() is not None:
                process, within_s = _spawn(), _WALL_S + _START_S
                weakref.finalize(self, _end, process)
            self._process = process
            answer = self._ask(process, line, within_s)
            if answer is None:
                _log.warning("a chat template was stopped: it took too much time or memory")
                _end(process)
                self._process = None
        return {"error": "TemplateTooSlowError", "reason": ""} if answer is None else answer

    @staticmethod
    def _ask(process: subprocess.Popen[bytes], line: bytes, within_s: float) -> dict[str, Any] | None:
        """Returns the answer to a job, or None if there is none within the time."""
        if process.stdin is None or process.stdout is None:
            return None
        ends = time.monotonic() + within_s
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            return None
        pieces: list[bytes] = []
        while not pieces or not pieces[-1].endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, ends - time.monotonic()))
            piece = os.read(process.stdout.fileno(), 1 << 20) if ready else b""
            if not piece:
                return None
            pieces.append(piece)
        answer: dict[str, Any] = json.loads(b"".join(pieces))
        return answer


def _spawn() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "omni_stage.models.shared.text.template_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Signals of a terminal are for the stage server.
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
