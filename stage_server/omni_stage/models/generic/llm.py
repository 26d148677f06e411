"""Component generic/llm: any text model that vLLM serves (except gpt-oss), as a stage that reads and writes text.

As the entry stage it reads the client's prompt. With an input it reads the text of another stage as a message of the
user, which follows the earlier messages of the client's chat. It publishes the text that the client gets too: without
reasoning, tool calls, special tokens and stop strings.

This component turns text and chat into token ids with the checkpoint's own tokenizer and chat template (local files
only, no remote code). So the stage refuses a prompt that is too long before it reaches the engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_proto.tensors import TEXT_SCHEMA, TensorSchema
from omni_stage.errors import ConfigurationError, InvalidRequestError
from omni_stage.exchange import GivenReply, ReplyTokens, TextParse, ToolMode
from omni_stage.models.component import (
    ChatMessage,
    EdgeInput,
    Emitter,
    EngineInput,
    EngineStep,
    FinishReason,
    StageRequest,
    StageStep,
    TextPart,
    UserPrompt,
)
from omni_stage.models.generic.manifest import LLM
from omni_stage.models.shared.config_file import read_config
from omni_stage.models.shared.text.chat_template import ChatTemplate
from omni_stage.models.shared.text.edge import TEXT_FIELD, TextPublisher, read_text
from omni_stage.models.shared.text.encoder import TextEncoder
from omni_stage.models.shared.text.tokenizer import bytes_per_token, load_tokenizer

if TYPE_CHECKING:
    from omni_stage.vllm_adapter.text_parsers import TextParse as ParserOfRequest, TextParsers

_WARMUP_TOKENS = 4


class TextTokenizer:
    """Turns text, chat messages or token ids into checked token ids. Safe to use from several threads."""

    def __init__(self, tokenizer: Any, system_prompt: str = "", embedded: int | None = None) -> None:
        """`system_prompt`: message before the text of another stage, and before chats that have no system message.

        `embedded`: number of the model's token embeddings; None if it is not known.

        Raises ConfigurationError if the checkpoint has no chat template that could show it.
        """
        self._tokenizer = tokenizer
        self._system_prompt = system_prompt
        self._embedded = embedded
        self._encoder = TextEncoder(tokenizer)
        self._template = ChatTemplate(tokenizer)
        if system_prompt and not self._template.exists:
            raise ConfigurationError(
                "this checkpoint has no chat template, so it cannot show a system prompt; remove systemPrompt",
                field="systemPrompt",
            )

    @classmethod
    def load(cls, path: Path, system_prompt: str = "") -> TextTokenizer:
        """Read the tokenizer in the checkpoint directory. Raises ConfigurationError."""
        config = read_config(path)
        parts = (config.get("text_config"), config.get("llm_config"), config)
        sizes = [part["vocab_size"] for part in parts if isinstance(part, dict) and "vocab_size" in part]
        return cls(load_tokenizer(path), system_prompt, sizes[0] if sizes and isinstance(sizes[0], int) else None)

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary: token ids are below it. A tokenizer may have more ids than the model has embeddings:
        fine-tuning often adds a token for padding, which the model never reads."""
        return min(len(self._tokenizer), self._embedded or len(self._tokenizer))

    @property
    def hf(self) -> Any:
        """The tokenizer itself, for vLLM's parsers."""
        return self._tokenizer

    @property
    def chars_per_token(self) -> int | None:
        """See TextEncoder."""
        return self._encoder.chars_per_token

    @cached_property
    def bytes_per_token(self) -> int:
        """Maximum number of bytes of text that one token stands for."""
        return bytes_per_token(self._tokenizer.get_vocab())

    def encode_passed_on(self, passed: UserPrompt, maximum: int | None, field: str) -> list[int]:
        """Returns the token ids of a conversation that another stage passes on, with the text of the edge, if any.

        For a checkpoint without a chat template, the text of a single message is the prompt. `field`: what errors name.
        Raises InvalidRequestError, PromptTooLongError.
        """
        messages = passed.messages or ()
        if not self._template.exists and len(messages) == 1 and passed.tools is None:
            return self._check(self._encoder.encode("\n".join(_texts_of(messages[0])), maximum, field), field)
        rendered = self._render(passed, self._introduce(messages))
        return self._check(self._encoder.encode(rendered, maximum, field, add_special_tokens=False), field)

    def _check(self, ids: list[int], field: str) -> list[int]:
        """Returns the ids. Raises InvalidRequestError if the model has no embedding for one of them."""
        if max(ids, default=0) >= self.vocab_size:
            token = str(self._tokenizer.convert_ids_to_tokens(max(ids)))
            raise InvalidRequestError(
                f"the text holds the token {token[:40]!r}, for which the model has no embedding; leave it out",
                field=field,
                limit=self.vocab_size - 1,
            )
        return ids

    def encode_reply(self, reply: GivenReply, maximum: int | None) -> ReplyTokens:
        """Returns a given reply as tokens and as text. Raises InvalidRequestError, PromptTooLongError."""
        if reply.token_ids is None:
            text = reply.text or ""
            ids = self._encoder.encode_plain(text, maximum, "start.reply")
            return ReplyTokens(tuple(self._check(ids, "start.reply")), text)
        ids = list(reply.token_ids)
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise InvalidRequestError(
                f"a token id of the reply is outside the vocabulary of {self.vocab_size} tokens",
                field="start.reply.token_ids",
                limit=self.vocab_size - 1,
            )
        if ids[-1] == self._tokenizer.eos_token_id:
            ids.pop()
        if not ids:
            raise InvalidRequestError(
                "the reply holds nothing but its end; leave the reply out", field="start.reply.token_ids"
            )
        return ReplyTokens(tuple(ids), self._encoder.decode(ids))

    def encode(self, prompt: UserPrompt, maximum: int | None = None) -> list[int]:
        """Returns the token ids of the prompt, at least one. Raises InvalidRequestError, PromptTooLongError.

        `maximum`: the number of tokens that the engine takes, or None.
        """
        if prompt.token_ids is not None:
            ids = list(prompt.token_ids)
        elif prompt.messages is not None:
            text = self._render(prompt, self._introduce(prompt.messages))
            # The template writes the special tokens itself.
            ids = self._check(self._encoder.encode(text, maximum, "start.chat", add_special_tokens=False), "start.chat")
        elif prompt.text is not None:
            ids = self._check(self._encoder.encode(prompt.text, maximum, "start.text"), "start.text")
        else:
            raise InvalidRequestError("the prompt is empty: give text, chat or token ids", field="start.input")
        if not ids:
            raise InvalidRequestError("the prompt has no tokens; give at least one", field="start.input")
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise InvalidRequestError(
                f"a token id of the prompt is outside the vocabulary of {self.vocab_size} tokens",
                field="start.token_ids",
                limit=self.vocab_size - 1,
            )
        return ids

    def _introduce(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """Returns the conversation with the stage's system prompt before it, unless it has a system message."""
        if not self._system_prompt or any(message.role == "system" for message in messages):
            return messages
        return [ChatMessage("system", [TextPart(self._system_prompt)]), *messages]

    def _render(self, prompt: UserPrompt, messages: Sequence[ChatMessage]) -> str:
        if not self._template.exists:
            raise InvalidRequestError(
                "this checkpoint has no chat template; send the prompt as text", field="start.chat"
            )
        tools = prompt.tools
        offered = None if tools is None or tools.mode is ToolMode.NONE else tools.as_openai()
        from omni_stage.vllm_adapter.text_parsers import reads_parts

        as_parts = reads_parts(self._template.source(offered))
        conversation = [describe_message(message, as_parts=as_parts) for message in messages]
        return self._template.render(prompt, conversation, offered)


def describe_message(
    message: ChatMessage, *, as_parts: bool = False, dumps: Callable[[Any], Any] = dict
) -> dict[str, Any]:
    """Returns the message in OpenAI's form. `dumps` converts the arguments of tool calls.

    `as_parts`: whether the content is a list of parts. If not, the content is one text, in which line breaks separate
    the parts, as in vLLM. The result of a tool is always one text. By default the arguments stay mappings, because chat
    templates read mappings. Raises InvalidRequestError if the message holds media.
    """
    texts = _texts_of(message)
    content: Any = "\n".join(texts)
    if as_parts and message.role != "tool":
        content = [{"type": "text", "text": text} for text in texts]
    described: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        described["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dumps(call.arguments)}}
            for call in message.tool_calls
        ]
    if message.role == "tool":  # also if the call has no id: templates join it with text
        described["tool_call_id"] = message.tool_call_id
    if message.name:
        described["name"] = message.name
    return described


def _texts_of(message: ChatMessage) -> list[str]:
    texts: list[str] = []
    for part in message.parts:
        if not isinstance(part, TextPart):
            raise InvalidRequestError(
                f"component {LLM.id} reads text only; leave out images, audio and video", field="start.chat"
            )
        texts.append(part.text)
    return texts


class _TextEmitter:
    """Forwards text and token ids, through the parser if there is one."""

    def __init__(self, parse: TextParse | None) -> None:
        self._parse = parse

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one engine step to one stage step. Raises ModelExecutionError if the parser fails."""
        made = StageStep.of(step)
        if self._parse is not None:
            parsed = self._parse.feed(
                step.text, step.token_ids, step.prompt_token_ids, finished=step.finish_reason is not None
            )
            made.text, made.reasoning, made.tool_calls = parsed.text, parsed.reasoning, parsed.tool_calls
        return made


class GenericLlm:
    """A text model; see the module's docstring."""

    facts = LLM
    input_schema: TensorSchema | None = TEXT_SCHEMA
    output_schema: TensorSchema | None = TEXT_SCHEMA
    default_sampling = LLM.default_sampling
    voices: Sequence[str] = ()

    def __init__(self, model_path: Path, tokenizer: TextTokenizer, parsers: TextParsers | None = None) -> None:
        """`parsers` parse tool calls and reasoning; None if the stage has no parsers."""
        self._model_path = model_path
        self._tokenizer = tokenizer
        self._parsers = parsers

    @property
    def chars_per_token(self) -> int | None:
        """See KnowsTokens."""
        return self._tokenizer.chars_per_token

    def max_rows(self, input_rows: int, max_tokens: int) -> int:
        """See BoundsRows. The text of the prompt is not published."""
        return max_tokens * self._tokenizer.bytes_per_token

    def engine_kwargs(self) -> dict[str, Any]:
        """Returns arguments for text only, even if the model could read images, because prompts cannot hold media."""
        return {
            "model": str(self._model_path),
            "language_model_only": True,
        }

    def prepare(self, request: StageRequest) -> EngineInput:
        """Tokenize the prompt, or another stage's text; prompt embeddings are passed unchanged."""
        if isinstance(request.source, EdgeInput):
            return self._prepare_text(request.source, request.max_prompt_tokens)
        if not isinstance(request.source, UserPrompt):
            raise InvalidRequestError(f"component {LLM.id} cannot start before its input is complete")
        if request.voice:
            raise InvalidRequestError(f"component {LLM.id} does not speak; leave the voice out", field="start.audio")
        if request.source.prompt_embeds is not None:
            return EngineInput(prompt={}, prompt_embeds=request.source.prompt_embeds)
        ids = self._tokenizer.encode(request.source, request.max_prompt_tokens)
        if request.source.reply is not None:
            reply = self._tokenizer.encode_reply(request.source.reply, request.max_prompt_tokens)
            return EngineInput(prompt={"prompt_token_ids": [*ids, *reply.token_ids]}, reply=reply)
        prompt: Mapping[str, Any] = {"prompt_token_ids": ids}
        parse = self._open_parser(request.source)
        return EngineInput(prompt=prompt, parse=parse, sampling={} if parse is None else parse.sampling)

    def _prepare_text(self, source: EdgeInput, maximum: int | None) -> EngineInput:
        context = source.context or UserPrompt()
        earlier = context.messages or ()
        text = read_text(source.tensors).strip()
        if not text and context.reply is None and not context.written:
            return EngineInput(prompt={}, finished=FinishReason.EMPTY_INPUT)
        # What precedes a reply does not change its words, so what was heard may be empty then.
        heard = [] if context.written else [ChatMessage("user", [TextPart(text)])]
        asked = UserPrompt(messages=[*earlier, *heard], tools=context.tools)
        field = "start.chat" if earlier or context.tools else TEXT_FIELD
        ids = self._tokenizer.encode_passed_on(asked, maximum, field)
        if context.reply is not None:
            reply = self._tokenizer.encode_reply(context.reply, maximum)
            return EngineInput(prompt={"prompt_token_ids": [*ids, *reply.token_ids]}, reply=reply)
        parse = self._open_parser(asked)
        return EngineInput(
            prompt={"prompt_token_ids": ids}, parse=parse, sampling={} if parse is None else parse.sampling
        )

    def _open_parser(self, source: UserPrompt) -> ParserOfRequest | None:
        if self._parsers is None:
            return None
        messages = [describe_message(message, dumps=json.dumps) for message in source.messages or ()]
        return self._parsers.open(source.tools, source.structured, messages, source.template_arguments)

    def emitter(self, request: StageRequest, prepared: EngineInput) -> Emitter:
        """Returns an emitter that uses the request's parser, if it has one."""
        emitter = _TextEmitter(prepared.parse)
        return TextPublisher(emitter) if request.want_tensors else emitter

    def warmup_request(self) -> StageRequest:
        """Returns a request that generates a few tokens. Its prompt repeats token 0."""
        return StageRequest(
            request_id="warmup",
            source=UserPrompt(token_ids=[0] * _WARMUP_TOKENS),
            sampling=SamplingDefaults(temperature=0.0, max_tokens=_WARMUP_TOKENS, ignore_eos=True),
        )


def build_component(config: StageConfig) -> GenericLlm:
    """Build the component for config.model.path. Raises ConfigurationError."""
    path = Path(config.model.path)
    if not (path / "config.json").is_file():
        raise ConfigurationError(
            f"model.path {path} holds no config.json; it must be a checkpoint in the format of Hugging Face",
            field="model.path",
        )
    if read_config(path).get("model_type") == "gpt_oss":
        raise ConfigurationError(
            f"model.path {path} holds gpt-oss, which writes in the harmony format; stages cannot read it; "
            "choose another model",
            field="model.path",
        )
    tokenizer, args = TextTokenizer.load(path, config.system_prompt or ""), config.engine_args
    if not (args.tool_call_parser or args.reasoning_parser):
        return GenericLlm(path, tokenizer)
    from omni_stage.vllm_adapter.text_parsers import TextParsers

    return GenericLlm(
        path, tokenizer, TextParsers(tokenizer.hf, args.tool_call_parser or "", args.reasoning_parser or "")
    )
