"""generic/llm in a cascade: it reads another stage's text as the user's message, and publishes its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from omni_proto.stage_config import SamplingDefaults
from omni_stage.errors import ConfigurationError, InvalidRequestError, InvalidTensorError, PromptTooLongError
from omni_stage.exchange import GivenReply
from omni_stage.models.component import (
    ChatMessage,
    EdgeInput,
    EdgeStream,
    EngineStep,
    FinishReason,
    StageRequest,
    TextPart,
    UserPrompt,
)
from omni_stage.models.generic.llm import GenericLlm, TextTokenizer
from omni_stage.models.shared.text.edge import read_text, text_rows
from support.models.generic_checkpoint import train_tokenizer

QUESTION = "How are you today?"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer()


@pytest.fixture
def llm(tokenizer: Any, tmp_path: Any) -> GenericLlm:
    return GenericLlm(tmp_path, TextTokenizer(tokenizer))


def request(source: Any, **more: Any) -> StageRequest:
    return StageRequest(request_id="r", source=source, sampling=SamplingDefaults(), **more)


@pytest.mark.parametrize("text", [QUESTION, f"  {QUESTION}\n"])
def test_text_of_another_stage_is_the_users_message(llm: GenericLlm, tokenizer: Any, text: str) -> None:
    prepared = llm.prepare(request(EdgeInput(text_rows(text))))
    rendered = tokenizer.decode(prepared.prompt["prompt_token_ids"])
    assert rendered == f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"


def test_without_a_chat_template_the_text_is_the_prompt(tmp_path: Any) -> None:
    plain = train_tokenizer()
    plain.chat_template = None
    prepared = GenericLlm(tmp_path, TextTokenizer(plain)).prepare(request(EdgeInput(text_rows(QUESTION))))
    assert plain.decode(prepared.prompt["prompt_token_ids"]) == QUESTION


def test_the_system_prompt_precedes_texts_and_chats_without_one(tokenizer: Any, tmp_path: Any) -> None:
    llm = GenericLlm(tmp_path, TextTokenizer(tokenizer, "Be brief."))
    brief = f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    own = [ChatMessage("system", [TextPart("Sing.")]), ChatMessage("user", [TextPart(QUESTION)])]
    for source, expected in (
        (EdgeInput(text_rows(QUESTION)), brief),
        (UserPrompt(messages=own[1:]), brief),
        (UserPrompt(messages=own), brief.replace("Be brief.", "Sing.")),
        (UserPrompt(text=QUESTION), QUESTION),
    ):
        assert tokenizer.decode(llm.prepare(request(source)).prompt["prompt_token_ids"]) == expected
    plain = train_tokenizer()
    plain.chat_template = None
    with pytest.raises(ConfigurationError, match="no chat template"):
        TextTokenizer(plain, "Be brief.")


def test_the_text_follows_the_conversation_of_the_client(llm: GenericLlm, tokenizer: Any, tmp_path: Any) -> None:
    earlier = [
        ChatMessage("system", [TextPart("Sing.")]),
        ChatMessage("user", [TextPart("Hi!")]),
        ChatMessage("assistant", [TextPart("Hello.")]),
    ]
    asked = request(EdgeInput(text_rows(QUESTION), UserPrompt(messages=earlier)))
    chat = request(UserPrompt(messages=[*earlier, ChatMessage("user", [TextPart(QUESTION)])]))
    assert llm.prepare(asked).prompt == llm.prepare(chat).prompt
    own = GenericLlm(tmp_path, TextTokenizer(tokenizer, "Be brief."))
    assert own.prepare(asked).prompt == llm.prepare(chat).prompt, "the client's system message replaces the stage's"
    long = UserPrompt(messages=[ChatMessage("user", [TextPart(QUESTION * 9000)])])
    with pytest.raises(PromptTooLongError) as caught:
        llm.prepare(replace(request(EdgeInput(text_rows("Hi"), long)), max_prompt_tokens=8))
    assert caught.value.details.field == "start.chat"
    plain = train_tokenizer()
    plain.chat_template = None
    with pytest.raises(InvalidRequestError, match="no chat template"):
        GenericLlm(tmp_path, TextTokenizer(plain)).prepare(asked)


def test_a_given_reply_needs_no_text_of_the_other_stage(llm: GenericLlm, tokenizer: Any) -> None:
    given = UserPrompt(reply=GivenReply(text="I am well."))
    prepared = llm.prepare(request(EdgeInput(text_rows(""), given)))
    ids = tokenizer("I am well.")["input_ids"]
    assert prepared.reply is not None
    assert prepared.reply.text == "I am well."
    assert prepared.prompt["prompt_token_ids"][-len(ids) :] == ids


@pytest.mark.parametrize("text", ["", " \n"])
def test_no_text_is_not_answered(llm: GenericLlm, text: str) -> None:
    assert llm.prepare(request(EdgeInput(text_rows(text)))).finished is FinishReason.EMPTY_INPUT


def test_refusals_name_the_edge(llm: GenericLlm) -> None:
    with pytest.raises(PromptTooLongError, match="more than 8 tokens") as caught:
        llm.prepare(replace(request(EdgeInput(text_rows(QUESTION * 9000))), max_prompt_tokens=8))
    assert caught.value.details.field == "tensors.utf8"
    broken = {"utf8": text_rows("\u4f60")["utf8"][:2]}
    with pytest.raises(InvalidTensorError, match="not UTF-8"):
        llm.prepare(request(EdgeInput(broken)))
    with pytest.raises(InvalidRequestError, match="before its input is complete"):
        llm.prepare(request(EdgeStream()))


@pytest.mark.parametrize("want_tensors", [True, False])
def test_the_visible_answer_is_published_if_a_stage_reads_it(llm: GenericLlm, want_tensors: bool) -> None:
    asked = request(UserPrompt(text=QUESTION), want_tensors=want_tensors)
    emitter = llm.emitter(asked, llm.prepare(asked))
    # The engine's text has neither special tokens nor stop strings.
    steps = [
        EngineStep([5, 6], "I am"),
        EngineStep([7], ""),
        EngineStep([8, 2], " well.", finish_reason=FinishReason.STOP),
    ]
    made = [emitter.emit(step) for step in steps]
    assert "".join(step.text for step in made) == "I am well."
    assert "".join(read_text(step.tensors) for step in made) == ("I am well." if want_tensors else "")


@pytest.mark.parametrize("by_ids", [True, False])
def test_a_given_reply_is_spoken_as_if_it_had_been_written(llm: GenericLlm, tokenizer: Any, by_ids: bool) -> None:
    text = "I am well, thank you."
    ids = tokenizer(text)["input_ids"]
    reply = GivenReply(token_ids=[*ids, tokenizer.eos_token_id]) if by_ids else GivenReply(text=text)
    prepared = llm.prepare(request(UserPrompt(text=QUESTION, reply=reply), want_tensors=True))
    assert prepared.reply is not None
    assert (list(prepared.reply.token_ids), prepared.reply.text) == (ids, text)
    assert prepared.prompt["prompt_token_ids"][-len(ids) :] == ids
    assert prepared.parse is None


def test_ids_of_a_reply_are_checked(llm: GenericLlm) -> None:
    with pytest.raises(InvalidRequestError, match="outside the vocabulary") as caught:
        llm.prepare(request(UserPrompt(text="x", reply=GivenReply(token_ids=[1 << 20]))))
    assert caught.value.details.field == "start.reply.token_ids"
    with pytest.raises(InvalidRequestError, match="nothing but its end"):
        llm.prepare(request(UserPrompt(text="x", reply=GivenReply(token_ids=[llm._tokenizer.hf.eos_token_id]))))


def test_rows_are_bytes_of_the_new_tokens(llm: GenericLlm) -> None:
    assert llm.max_rows(10_000, 48) == 48 * len("<|endoftext|>")
