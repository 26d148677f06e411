"""How generic/llm renders a chat: the form of messages that a template gets, and failing templates. Also tests which
models are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_proto.stage_config import StageConfig
from omni_stage.errors import ConfigurationError, InvalidRequestError
from omni_stage.exchange.reply_form import CalledTool, Tool, Tools
from omni_stage.models.component import ChatMessage, TextPart, UserPrompt
from omni_stage.models.generic.llm import TextTokenizer, build_component
from support.models.generic_checkpoint import train_tokenizer

AS_TEXT = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}|{% endfor %}"
AS_PARTS = (
    "{% for message in messages %}{{ message['role'] }}: "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'text' %}[{{ content['text'] }}]{% endif %}{% endfor %}{% endif %}|{% endfor %}"
)
"""A template that loops over the parts of a message, as those of Llama Guard and LLaVA do."""


def render(template: str, *messages: ChatMessage, tools: Tools | None = None, **arguments: Any) -> str:
    tokenizer: Any = train_tokenizer()
    tokenizer.chat_template = template
    prompt = UserPrompt(messages=messages, tools=tools, template_arguments=arguments)
    text: str = tokenizer.decode(TextTokenizer(tokenizer).encode(prompt))
    return text


def message(role: str, *texts: str, **fields: Any) -> ChatMessage:
    return ChatMessage(role, [TextPart(text) for text in texts], **fields)


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        (AS_TEXT, "user: The sky is green.\nWhich colour has it?|assistant: |tool: green\nor blue|"),
        (AS_PARTS, "user: [The sky is green.][Which colour has it?]|assistant: |tool: green\nor blue|"),
    ],
)
def test_a_template_gets_the_form_of_messages_that_it_reads(template: str, rendered: str) -> None:
    """As in vLLM, a message is a list of parts if the template loops over them, else one text with a line per part."""
    call = CalledTool("c1", "look", {})
    chat = (
        message("user", "The sky is green.", "Which colour has it?"),
        message("assistant", tool_calls=[call]),
        message("tool", "green", "or blue", tool_call_id="c1"),
    )
    assert render(template, *chat) == rendered


def test_a_template_gets_names() -> None:
    """For example, Kimi's template writes the names of speakers and tools."""
    template = "{% for message in messages %}{{ message.get('name') or message['role'] }}|{% endfor %}"
    chat = (
        message("user", "hi", name="anna"),
        message("tool", "", tool_call_id="c", name="look"),
        message("user", "x"),
    )
    assert render(template, *chat) == "anna|look|user|"


def test_a_template_gets_further_arguments_and_ignores_unknown_ones() -> None:
    template = "{% if enable_thinking is defined and not enable_thinking %}no thinking{% else %}thinking{% endif %}"
    assert render(template, message("user", "hi")) == "thinking"
    assert render(template, message("user", "hi"), enable_thinking=False, other={"a": 1}) == "no thinking"


@pytest.mark.parametrize("name", ["tokenize", "chat_template", "documents", "add_generation_prompt", "conversation"])
def test_arguments_of_the_function_that_renders_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name) as caught:
        render(AS_TEXT, message("user", "hi"), **{name: "{{ 1 }}"})
    assert caught.value.details.field == "start.chat.template_arguments"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('Conversation roles must alternate') }}",
        "{% for tool in tools %}{{ '- ' + tool.function.description }}{% endfor %}",
    ],
)
def test_a_template_that_fails_refuses_the_chat(template: str) -> None:
    """A template may also fail with an error of Python, here because a description is missing."""
    with pytest.raises(InvalidRequestError, match="chat template refused") as caught:
        render(template, message("user", "hi"), tools=Tools((Tool("look", "", {}),)))
    assert caught.value.details.field == "start.chat"


def test_gpt_oss_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}')
    fields = {"pipeline": "p", "stage": "llm", "component": "generic/llm", "outputs": ["Text"]}
    config = StageConfig.model_validate({**fields, "model": {"path": str(tmp_path)}})
    with pytest.raises(ConfigurationError, match="harmony") as caught:
        build_component(config)
    assert caught.value.details.field == "model.path"
