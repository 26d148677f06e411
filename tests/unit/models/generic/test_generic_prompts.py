"""How generic/llm renders a chat: the form of messages that a template gets, and failing templates. Also tests which
models are refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template

from omni_proto.stage_config import StageConfig
from omni_stage.errors import ConfigurationError, InvalidRequestError
from omni_stage.exchange import CalledTool, GivenReply, OfferedTool, Tools
from omni_stage.models.component import ChatMessage, TextPart, UserPrompt
from omni_stage.models.generic.llm import TextTokenizer, build_component
from omni_stage.models.shared.text.chat_template import ChatTemplate
from omni_stage.models.shared.text.template_worker import compile_template
from support.models.generic_checkpoint import CHAT_TEMPLATE, TOOL_TEMPLATE, train_tokenizer

AS_TEXT = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}|{% endfor %}"
AS_PARTS = (
    "{% for message in messages %}{{ message['role'] }}: "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'text' %}[{{ content['text'] }}]{% endif %}{% endfor %}{% endif %}|{% endfor %}"
)
"""A template that loops over the parts of a message, as those of Llama Guard and LLaVA do."""


def render(template: str, *messages: ChatMessage, tools: Tools | None = None, **arguments: Any) -> str:
    tokenizer = text_tokenizer()
    tokenizer.hf.chat_template = template
    prompt = UserPrompt(messages=messages, tools=tools, template_arguments=arguments)
    text: str = tokenizer.hf.decode(tokenizer.encode(prompt))
    return text


@cache
def text_tokenizer() -> TextTokenizer:
    return TextTokenizer(train_tokenizer())


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


def test_a_template_gets_the_id_of_each_result_even_if_it_is_empty() -> None:
    template = "{% for message in messages %}{{ '#' + message['tool_call_id'] }}|{% endfor %}"
    results = message("tool", "green", tool_call_id="c1"), message("tool", "blue")
    assert render(template, *results) == "#c1|#|"


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


@pytest.mark.parametrize(
    "name",
    [
        *("tokenize", "chat_template", "documents", "add_generation_prompt", "conversation", "messages"),
        *("return_assistant_tokens_mask", "continue_final_message", "conversations"),
        *("eos_token", "bos_token", "pad_token", "raise_exception", "strftime_now", "range", "namespace", "self"),
    ],
)
def test_what_every_template_gets_is_no_argument(name: str) -> None:
    """Neither arguments of the functions that render, nor variables and functions that they supply to the template."""
    with pytest.raises(InvalidRequestError, match=name) as caught:
        render(AS_TEXT, message("user", "hi"), **{name: "{{ 1 }}"})
    assert caught.value.details.field == f"start.chat.template_arguments.{name}"


@pytest.mark.parametrize(
    ("template", "arguments", "says", "field"),
    [
        ("{{ raise_exception('Roles must\n alternate') }}", {}, "says: Roles must alternate$", ""),
        ("{{ raise_exception('x' * 999) }}", {}, f"says: {'x' * 200}$", ""),
        ("{{ messages[0].nothing.more }}", {}, r"refused the messages.*UndefinedError", ""),
        ("{% for tool in tools %}{{ '- ' + tool.function.description }}{% endfor %}", {}, "the tools.*TypeError", ""),
        ("{{ 1 // n }}", {"n": 0}, "refused the template arguments.*ZeroDivisionError", ".template_arguments"),
        ("{% if n %}{{ raise_exception('No n') }}{% endif %}", {"n": 1}, "says: No n$", ".template_arguments"),
        ("{% for i in range(n) %}x{% endfor %}", {"n": 10**9}, "too much time", ".template_arguments"),
        (
            "{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}",
            {"n": 10**5},
            "too much",
            ".template_arguments",
        ),
        (
            "{% for i in n %}{% for j in n %}{{ messages }}{% endfor %}{% endfor %}",
            {"n": [1] * 5000},
            "too much",
            ".template_arguments",
        ),
        ("{{ 'x' * n * n }}", {"n": 10**6}, "too much", ".template_arguments"),
        ("{{ '%*d' % (n, 1) }}", {"n": 10**10}, "too much", ".template_arguments"),
    ],
)
def test_a_template_that_fails_refuses_what_it_fails_on(
    template: str, arguments: dict[str, Any], says: str, field: str
) -> None:
    """The template's own sentence is passed on. A large conversation is rendered in a process of its own."""
    tools = Tools((OfferedTool("look", "", {}),))
    cheap = "too much" not in says
    for size in (1, 20_000) if cheap else (1,):
        with pytest.raises(InvalidRequestError, match=says) as caught:
            render(template, message("user", "h" * size), tools=tools, **arguments)
        assert caught.value.details.field == f"start.chat{field}"


def test_a_template_renders_the_same_in_a_process_of_its_own() -> None:
    """A long conversation, and arguments that may be loop counts, are rendered elsewhere, to the same text."""
    template = (
        "{% for m in messages %}{{ m.role }}{{ m.content | tojson }}{{ tools | tojson(indent=1) }}{% endfor %}{{ n }}"
    )
    tools = Tools((OfferedTool("look", "at \u2603 <b>", {"type": "object", "properties": {"a": {"type": "string"}}}),))
    short = render(template, message("user", "h\u00e9 <a> 'q'"), tools=tools, n="[1, 2.5, None]")
    assert render(template, message("user", "h\u00e9 <a> 'q'"), tools=tools, n=[1, 2.5, None]) == short
    long = render(template, message("user", "h\u00e9 <a> 'q'" * 2000), tools=tools, n=7)
    assert long == render(template, message("user", "@"), tools=tools, n=7).replace("@", "h\u00e9 <a> 'q'" * 2000)


FEATURES = (
    "{%- set ns = namespace(n=0) -%}\n  {% for m in messages %}\n    {% if loop.first %}{% continue %}{% endif %}\n"
    "{{ m.role | upper }}{{ m | tojson(indent=2, ensure_ascii=True) }}{% set ns.n = ns.n + 1 %}\n    {% endfor %}\n"
    "{% generation %}{{ ns.n }}{{ nothing | default('<&') }}{{ eos_token }}{% endgeneration %}"
    "{{ tools | tojson }}{{ documents is none }}{{ strftime_now('%Y') }}{{ add_generation_prompt }}{{ [1, 2] | last }}"
)


@pytest.mark.parametrize("template", [FEATURES, AS_TEXT, AS_PARTS, CHAT_TEMPLATE, TOOL_TEMPLATE])
def test_templates_render_as_in_transformers(template: str) -> None:
    tokenizer: Any = train_tokenizer()
    tokenizer.chat_template = template
    tools = [{"type": "function", "function": {"name": "look", "description": "at \u2603", "parameters": {}}}]
    messages = [{"role": "user", "content": "h\u00e9\n <a>"}, {"role": "assistant", "content": "'q'"}]
    for offered in (None, tools):
        expected = tokenizer.apply_chat_template(messages, tools=offered, tokenize=False, add_generation_prompt=True)
        prompt = UserPrompt(messages=[])
        assert ChatTemplate(tokenizer).render(prompt, messages, offered) == expected


def test_the_environment_of_templates_is_that_of_transformers() -> None:
    theirs, ours = _compile_jinja_template("x").environment, compile_template("x").environment
    assert type(ours) is type(theirs)
    for name in (
        "trim_blocks",
        "lstrip_blocks",
        "keep_trailing_newline",
        "autoescape",
        "undefined",
        "newline_sequence",
    ):
        assert getattr(ours, name) == getattr(theirs, name)
    assert (set(ours.filters), set(ours.globals)) == (set(theirs.filters), set(theirs.globals))
    assert (set(ours.tests), len(ours.extensions)) == (set(theirs.tests), len(theirs.extensions))


def test_gpt_oss_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}')
    fields = {"pipeline": "p", "stage": "llm", "component": "generic/llm", "outputs": ["Text"]}
    config = StageConfig.model_validate({**fields, "model": {"path": str(tmp_path)}})
    with pytest.raises(ConfigurationError, match="harmony") as caught:
        build_component(config)
    assert caught.value.details.field == "model.path"


def test_tokens_without_an_embedding_are_refused() -> None:
    """Fine-tuning often adds a token for padding to the tokenizer only. The engine would end if it read its id."""
    tokenizer = train_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<|added|>"})
    text = TextTokenizer(tokenizer, embedded=len(tokenizer) - 1)
    given = GivenReply(text="a <|added|>")
    for prompt in (UserPrompt(text="a <|added|>"), UserPrompt(token_ids=[len(tokenizer) - 1])):
        with pytest.raises(InvalidRequestError, match=r"no embedding|outside the vocabulary"):
            text.encode(prompt)
    with pytest.raises(InvalidRequestError, match=r"token '<\|added\|>', for which the model has no embedding"):
        text.encode_passed_on(UserPrompt(messages=[ChatMessage("user", [TextPart("a <|added|>")])]), None, "start.chat")
    assert text.encode(UserPrompt(text="a")) == TextTokenizer(tokenizer).encode(UserPrompt(text="a"))
    assert text.encode_reply(given, None).token_ids, "a reply is plain text, in which special tokens are letters"
