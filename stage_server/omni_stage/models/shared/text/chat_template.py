"""Renders conversations with a checkpoint's chat template, which is a program whose input callers choose."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jinja2.defaults import DEFAULT_NAMESPACE
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from omni_stage.errors import InvalidRequestError
from omni_stage.models.component.prompt import UserPrompt, is_light_argument
from omni_stage.models.shared.text.template_process import TOO_COSTLY, TemplateProcess
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
