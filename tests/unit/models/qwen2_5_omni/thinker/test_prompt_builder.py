"""A user's prompt becomes vLLM's prompt. The error for an invalid prompt names the field."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers import AutoTokenizer, Qwen2_5OmniProcessor

from omni_stage.errors import ConfigurationError, InvalidMediaError, InvalidRequestError, OmniStageError
from omni_stage.exchange import GivenReply, ReplyTokens
from omni_stage.models.component import AudioPart, ChatMessage, ImagePart, TextPart, UserPrompt
from omni_stage.models.qwen2_5_omni.checkpoint import read_checkpoint
from omni_stage.models.qwen2_5_omni.thinker.component import SPEECH_SYSTEM_PROMPT, read_audio_limit
from omni_stage.models.qwen2_5_omni.tiny.shapes import SPECIAL_TOKENS
from omni_stage.models.shared.prompts import PromptBuilder
from support.media.samples import make_audio, make_image


@pytest.fixture(scope="module")
def builder(tiny_checkpoint: Path) -> PromptBuilder:
    return PromptBuilder.load(
        read_checkpoint(tiny_checkpoint),
        max_audio_samples=read_audio_limit(tiny_checkpoint),
        speech_system_prompt=SPEECH_SYSTEM_PROMPT,
    )


def chat(*parts: TextPart | ImagePart | AudioPart, role: str = "user") -> UserPrompt:
    return UserPrompt(messages=[ChatMessage(role, parts)])


def test_text_is_tokenized_without_a_template(builder: PromptBuilder, tiny_checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    assert builder.build(UserPrompt(text="Hello")) == {"prompt_token_ids": tokenizer("Hello")["input_ids"]}


def test_token_ids_stay(builder: PromptBuilder) -> None:
    assert builder.build(UserPrompt(token_ids=(5, 6))) == {"prompt_token_ids": [5, 6]}


def test_chat_without_media_is_tokenized(builder: PromptBuilder, tiny_checkpoint: Path) -> None:
    processor = Qwen2_5OmniProcessor.from_pretrained(tiny_checkpoint)
    expected = processor.tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        chat_template=processor.chat_template,
        add_generation_prompt=True,
        return_dict=False,
    )
    prompt = UserPrompt(
        messages=[ChatMessage("system", [TextPart("Be brief.")]), ChatMessage("user", [TextPart("Hello")])]
    )
    assert builder.build(prompt) == {"prompt_token_ids": expected}


def test_media_keep_their_order(builder: PromptBuilder) -> None:
    grey = make_image(1).convert("L")
    prompt = builder.build(
        chat(
            TextPart("Look: "),
            ImagePart(grey, "a"),
            AudioPart(make_audio(0), 16_000, key="a"),
            ImagePart(make_image(2)),
        )
    )
    assert (
        "Look: <|vision_bos|><|IMAGE|><|vision_eos|><|audio_bos|><|AUDIO|><|audio_eos|><|vision_bos|>"
        in prompt["prompt"]
    )
    media = prompt["multi_modal_data"]
    assert [image.mode for image in media["image"]] == ["RGB", "RGB"]
    assert media["image"][0].tobytes() == grey.convert("RGB").tobytes()
    assert media["audio"][0][1] == 16_000
    assert prompt["multi_modal_uuids"] == {"image": ["image-a", None], "audio": ["audio-a"]}


def test_audio_is_brought_to_the_encoders_rate(builder: PromptBuilder) -> None:
    prompt = builder.build(chat(AudioPart(make_audio(0, rate_hz=48_000), 48_000)))
    samples, rate = prompt["multi_modal_data"]["audio"][0]
    assert (samples.size, samples.dtype, rate) == (16_000, np.float32, 16_000)


PART = "start.chat.messages[0].parts[0]"
AUDIO_ID = 640 - len(SPECIAL_TOKENS) + SPECIAL_TOKENS.index("<|AUDIO|>")
REFUSED: dict[str, tuple[UserPrompt, type[OmniStageError], str]] = {
    "nothing": (UserPrompt(), InvalidRequestError, "start.input"),
    "empty text": (UserPrompt(text=""), InvalidRequestError, "start.text"),
    "no ids": (UserPrompt(token_ids=[]), InvalidRequestError, "start.token_ids"),
    "negative id": (UserPrompt(token_ids=[-1]), InvalidRequestError, "start.token_ids"),
    "id outside the vocabulary": (UserPrompt(token_ids=[640]), InvalidRequestError, "start.token_ids"),
    "id of a placeholder": (UserPrompt(token_ids=[AUDIO_ID]), InvalidRequestError, "start.token_ids"),
    "placeholder in text": (UserPrompt(text="a <|IMAGE|> b"), InvalidRequestError, "start.text"),
    "placeholder in chat": (chat(TextPart("<|AUDIO|>")), InvalidRequestError, PART),
    "placeholder in two parts of a chat": (
        chat(TextPart("<|IMA"), TextPart("GE|>")),
        InvalidRequestError,
        "start.chat",
    ),
    "placeholder beside a medium": (
        chat(TextPart("<|AUD"), TextPart("IO|>"), AudioPart(make_audio(0), 16_000)),
        InvalidRequestError,
        "start.chat",
    ),
    "no message": (UserPrompt(messages=[]), InvalidRequestError, "start.chat"),
    "unknown role": (chat(TextPart("Hi"), role="tool"), InvalidRequestError, "start.chat.messages[0].role"),
    "short sound": (chat(AudioPart(make_audio(0, 0.01), 16_000)), InvalidMediaError, f"{PART}.audio"),
    "the third of three sounds": (
        chat(AudioPart(make_audio(0), 16_000), TextPart("x"), AudioPart(make_audio(0, 31.0), 16_000)),
        InvalidMediaError,
        "start.chat.messages[0].parts[2].audio",
    ),
    "long image": (chat(ImagePart(Image.new("RGB", (4020, 20)))), InvalidMediaError, f"{PART}.image"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(builder: PromptBuilder, case: str) -> None:
    prompt, error, field = REFUSED[case]
    with pytest.raises(error) as caught:
        builder.build(prompt)
    assert caught.value.details.field == field


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no') }}", "chat template says: no"),
        ("{% for message in messages %}{{ message['content'][0]['text'] + 1 }}{% endfor %}", "chat template refused"),
        ("{% for message in messages %}<|im_start|>user\n{% endfor %}", "<|IMAGE|> 0 times for 1 media"),
    ],
    ids=["refuses", "fails", "leaves media out"],
)
def test_a_chat_that_the_template_cannot_render_is_refused(tiny_checkpoint: Path, template: str, words: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    tokenizer.chat_template = template
    builder = PromptBuilder(tokenizer, read_checkpoint(tiny_checkpoint), max_audio_samples=480_000)
    with pytest.raises(InvalidRequestError, match=re.escape(words)) as caught:
        builder.build(chat(TextPart("Look: "), ImagePart(make_image(0))))
    assert caught.value.details.field == "start.chat"


def test_a_checkpoint_without_tokenizer_cannot_start(tmp_path: Path, tiny_checkpoint: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_checkpoint / "config.json").read_bytes())
    with pytest.raises(ConfigurationError, match="tokenizer"):
        PromptBuilder.load(read_checkpoint(tmp_path), max_audio_samples=480_000)


def test_a_reply_follows_the_prompt(builder: PromptBuilder, tiny_checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    reply = builder.encode_reply(GivenReply(text="Hello there."), (7,))
    assert reply == ReplyTokens(tuple(tokenizer("Hello there.")["input_ids"]), "Hello there.")
    alone = builder.build(chat(TextPart("Hi")))["prompt_token_ids"]
    assert builder.build(chat(TextPart("Hi")), reply=reply) == {"prompt_token_ids": [*alone, *reply.token_ids]}


def test_a_reply_to_media_is_token_ids_beside_them(builder: PromptBuilder, tiny_checkpoint: Path) -> None:
    """A prompt with media and a given reply becomes token ids, so that the reply's token ids can follow it."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    prompt = chat(ImagePart(make_image(0)), TextPart("What?"))
    plain = builder.build(prompt)
    given = builder.build(prompt, reply=ReplyTokens((5, 6), "x"))
    assert given["prompt_token_ids"] == [*tokenizer(plain["prompt"])["input_ids"], 5, 6]
    assert set(given) == {"prompt_token_ids", "multi_modal_data", "multi_modal_uuids"}
    assert list(given["multi_modal_data"]) == ["image"]


def test_names_of_special_tokens_in_a_reply_are_text(builder: PromptBuilder, tiny_checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    for token in SPECIAL_TOKENS:
        reply = builder.encode_reply(GivenReply(text=f"a{token}b"), ())
        assert not set(reply.token_ids) & set(tokenizer.all_special_ids)
        assert tokenizer.decode(reply.token_ids) == f"a{token}b"


def test_of_reply_ids_one_end_is_left_out(builder: PromptBuilder) -> None:
    """If a reply's token ids end with end tokens, only the last one is removed."""
    assert builder.encode_reply(GivenReply(token_ids=(5, 6, 7)), (7,)).token_ids == (5, 6)
    assert builder.encode_reply(GivenReply(token_ids=(7, 5, 7, 7)), (7,)).token_ids == (7, 5, 7)
    with pytest.raises(InvalidRequestError, match="nothing but its end"):
        builder.encode_reply(GivenReply(token_ids=(7,)), (7,))


@pytest.mark.parametrize("ids", [(1 << 20,), "placeholders"])
def test_reply_ids_that_are_no_text_are_refused(builder: PromptBuilder, tiny_checkpoint: Path, ids: object) -> None:
    known = read_checkpoint(tiny_checkpoint).placeholder_ids[:1] if ids == "placeholders" else ids
    with pytest.raises(InvalidRequestError) as caught:
        builder.encode_reply(GivenReply(token_ids=known), ())  # type: ignore[arg-type]
    assert caught.value.details.field == "start.reply.token_ids"
