"""vLLM's own parsers of a model's text (reasoning, tool calls), and the sampling parameters that they need.

vLLM's API server uses the same parsers. Nothing else in vLLM turns a model's own notation of tool calls into calls.
Interfaces of vLLM 0.32 used here, none of which is documented for other programs:
- `vllm.parser.ParserManager.get_parser` (parser/parser_manager.py): one Parser class that combines a tool parser and a
  reasoning parser.
- `Parser.adjust_request`, `Parser.parse_delta`, `Parser.parse` (parser/abstract_parser.py): the first adds the
  constraints on sampling that tool calls need; the second parses the text piece by piece; the third parses a whole
  answer, and keeps text that the second may lose. All read a ChatCompletionRequest.
- `Parser.set_prompt_token_ids`: from the prompt, a parser of a whole answer sees whether the reasoning has begun.
- `ToolParserManager.lazy_parsers`, `ReasoningParserManager.list_registered`: the names that a user may give.
- `get_cached_tokenizer` (tokenizers/hf.py): the tokenizer with which vLLM constructs parsers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMClientError
from vllm.parser import ParserManager
from vllm.reasoning import ReasoningParserManager
from vllm.renderers.hf import _detect_content_format
from vllm.sampling_params import StructuredOutputsParams
from vllm.tokenizers.hf import get_cached_tokenizer
from vllm.tool_parsers import ToolParserManager

from omni_stage.errors import ConfigurationError, InvalidRequestError, ModelExecutionError
from omni_stage.exchange import ParsedText, StructuredText, ToolCallPiece, ToolMode, Tools


def reads_parts(template: str) -> bool:
    """Returns whether the template reads the content of a message as a list of parts, not as one text.

    Private interface of vLLM 0.32: `_detect_content_format` (renderers/hf.py). vLLM's API server renders chats
    accordingly, and caches the answer for each template.
    """
    return _detect_content_format(template, default="string") == "openai"


_log = logging.getLogger(__name__)
_TOGETHER = 8
"""Most tokens of one character."""
_MOST_PIECES = 1024
"""Bounds the time in which nobody else is served, after a client has long read nothing: 0.1 ms each with hermes."""
_HARMONY = frozenset({"openai", "openai_gptoss"})
"""Parsers of gpt-oss's format. For gpt-oss, vLLM's server uses HarmonyParser and renders prompts in another way."""


class TextParsers:
    """The parsers of one stage."""

    def __init__(self, tokenizer: Any, tool_parser: str, reasoning_parser: str) -> None:
        """`tokenizer`: the checkpoint's tokenizer. `tool_parser`, `reasoning_parser`: their names in vLLM; empty for
        none.

        Raises ConfigurationError for a name that vLLM does not know, a parser of gpt-oss, or a tokenizer that a parser
        cannot read.
        """
        _check_name("toolCallParser", tool_parser, {*ToolParserManager.lazy_parsers, *ToolParserManager.tool_parsers})
        _check_name("reasoningParser", reasoning_parser, set(ReasoningParserManager.list_registered()))
        # Each request's parsers read the vocabulary. A plain tokenizer of transformers would build it for each of them.
        self._tokenizer = get_cached_tokenizer(tokenizer)
        self._parses_reasoning = bool(reasoning_parser)
        try:
            self._parser_class = ParserManager.get_parser(
                tool_parser_name=tool_parser or None,
                reasoning_parser_name=reasoning_parser or None,
                enable_auto_tools=bool(tool_parser),
                tokenizer=self._tokenizer,
            )
        except TypeError as error:
            raise ConfigurationError(
                "engineArgs.toolCallParser, engineArgs.reasoningParser: the checkpoint's tokenizer does not have the "
                "tokens that these parsers look for; choose the parsers of its model",
                field="engineArgs",
            ) from error

    def open(
        self,
        tools: Tools | None,
        structured: StructuredText | None,
        messages: Sequence[Mapping[str, Any]] = (),
        template_arguments: Mapping[str, Any] | None = None,
    ) -> TextParse | None:
        """Returns the parser of one request's text; None if neither reasoning nor tool calls are to be parsed.

        `messages`: the conversation, in OpenAI's form. `template_arguments`: further arguments of the chat template,
        which show a parser for example that the model does not reason. Raises InvalidRequestError for tools that a
        parser refuses, or whose strict schema it cannot enforce.
        """
        if self._parser_class is None or not (tools or self._parses_reasoning):
            return None
        try:
            request = ChatCompletionRequest.model_validate(_request(tools, structured, messages))
            make_parser = partial(
                self._parser_class,
                self._tokenizer,
                request.tools,
                chat_template_kwargs=dict(template_arguments or {}),
                model_config=None,
            )
            parser = make_parser()
            if self._parses_reasoning or request.tool_choice != "none":
                request = parser.adjust_request(request)
            _check_strict(tools, request)
        except (ValueError, VLLMClientError) as error:
            raise InvalidRequestError(
                "the tools cannot be offered to this model: its parser refuses their schemas", field="start.chat.tools"
            ) from error
        return TextParse(parser, make_parser, request, self._tokenizer.decode)


class TextParse:
    """The parser of one request's text."""

    def __init__(
        self,
        parser: Any,
        make_parser: Callable[[], Any],
        request: ChatCompletionRequest,
        decode: Callable[..., str],
    ) -> None:
        self._decode = partial(
            decode, skip_special_tokens=request.skip_special_tokens, clean_up_tokenization_spaces=False
        )
        self._parser = parser
        self._make_parser = make_parser
        self._request = request
        self._prompt_token_ids: list[int] | None = None
        self._written: list[str] = []
        self._token_ids: list[int] = []
        self._parsed: list[ParsedText] = []

    @property
    def sampling(self) -> dict[str, Any]:
        """The parameters of vLLM's SamplingParams that this parser needs."""
        request = self._request
        structured = request.extract_structured_outputs()
        return {
            "skip_special_tokens": request.skip_special_tokens,
            "spaces_between_special_tokens": request.spaces_between_special_tokens,
            **({} if structured is None else {"structured_outputs": structured}),
        }

    def feed(
        self, text: str, token_ids: Sequence[int], prompt_token_ids: Sequence[int] | None, *, finished: bool
    ) -> ParsedText:
        """Parse the next piece of text. The prompt's ids come with the first piece. Raises ModelExecutionError."""
        if prompt_token_ids is not None:
            self._prompt_token_ids = list(prompt_token_ids)
        if not text and not token_ids and not finished:
            return ParsedText()
        try:
            parsed = self._parse_pieces(text, list(token_ids), finished=finished)
            if not finished or self._request.tool_choice != "auto":
                return parsed
            rest = self._find_withheld()
        except Exception as error:
            # Log only the type: the message may quote the model's text, which belongs to the caller.
            _log.error("vLLM's parser failed on a model's text: %s", type(error).__name__)
            raise ModelExecutionError(
                f"the stage's parser cannot read what the model wrote ({type(error).__name__})"
            ) from error
        return ParsedText(parsed.text + rest.text, parsed.reasoning, (*parsed.tool_calls, *rest.tool_calls))

    def _parse_pieces(self, text: str, token_ids: list[int], *, finished: bool) -> ParsedText:
        """Parse the piece token by token. Tokens that became ready together are one piece, and of several tokens at
        once some parsers (vLLM 0.32: hermes, pythonic, xlam) make other calls, with the arguments of another one."""
        pieces = split_piece(text, token_ids, self._decode)
        found = [
            self._parse_piece(*piece, finished=finished and number == len(pieces))
            for number, piece in enumerate(pieces, 1)
        ]
        return ParsedText(
            "".join(one.text for one in found),
            "".join(one.reasoning for one in found),
            tuple(call for one in found for call in one.tool_calls),
        )

    def _parse_piece(self, text: str, token_ids: list[int], *, finished: bool) -> ParsedText:
        delta = self._parser.parse_delta(text, token_ids, self._request, self._prompt_token_ids, finished=finished)
        parsed = ParsedText()
        if delta is not None:
            calls = tuple(_piece(call) for call in delta.tool_calls or ())
            parsed = ParsedText(delta.content or "", delta.reasoning or "", calls)
        self._written.append(text)
        self._token_ids += token_ids
        self._parsed.append(parsed)
        return parsed

    def _find_withheld(self) -> ParsedText:
        """Returns the text that the parser withheld from an answer without calls, for example a last "<".

        A parser withholds text that could begin a call. Some parsers lose this text at the end, and `phi4_mini_json`
        withholds every answer. Without streaming, vLLM's server loses nothing, because `parse` reads the whole answer.
        """
        if any(parsed.tool_calls for parsed in self._parsed):
            return ParsedText()
        fresh = self._make_parser()
        fresh.set_prompt_token_ids(self._prompt_token_ids or [])
        reasoning, content, calls = fresh.parse(
            "".join(self._written), self._request, enable_auto_tools=True, model_output_token_ids=self._token_ids
        )
        text = "".join(parsed.text for parsed in self._parsed)
        thought = "".join(parsed.reasoning for parsed in self._parsed)
        # `parse` may disagree with the pieces, for example about where the reasoning ends. Text that was sent stays.
        if (reasoning or "").strip() != thought.strip() or not (content or "").startswith(text):
            return ParsedText()
        found = tuple(
            ToolCallPiece(number, call.id, call.name, call.arguments) for number, call in enumerate(calls or ())
        )
        return ParsedText((content or "")[len(text) :], tool_calls=found)


def split_piece(text: str, token_ids: list[int], decode: Callable[[list[int]], str]) -> list[tuple[str, list[int]]]:
    """Returns the texts of the tokens, with their ids. Tokens that have no text of their own, such as parts of a
    character, stay together; so does what follows a token whose text is not where it should be, or _MOST_PIECES."""
    pieces: list[tuple[str, list[int]]] = []
    at = begin = 0
    for end in range(1, len(token_ids)):
        if end - begin > _TOGETHER or len(pieces) == _MOST_PIECES:
            break
        said = decode(token_ids[begin:end])
        found = next((one for one in (said, f" {said}") if said and text.startswith(one, at)), "")
        if found:  # some tokenizers drop a first space
            pieces.append((found, token_ids[begin:end]))
            at, begin = at + len(found), end
    return [*pieces, (text[at:], token_ids[begin:])]


def structured_sampling(structured: StructuredText) -> dict[str, Any]:
    """Returns the parameters of vLLM's SamplingParams that force text of this form."""
    return {"structured_outputs": _structured_params(structured)}


def _structured_params(structured: StructuredText) -> StructuredOutputsParams:
    return StructuredOutputsParams(
        json=structured.json_schema,
        json_object=True if structured.json_object else None,
        regex=structured.regex,
        choice=list(structured.choice) if structured.choice is not None else None,
        grammar=structured.grammar,
    )


def _request(
    tools: Tools | None, structured: StructuredText | None, messages: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    fields: dict[str, Any] = {"messages": list(messages), "include_reasoning": True}
    if structured is not None:
        fields["structured_outputs"] = _structured_params(structured)
    if tools is not None and tools.mode is not ToolMode.NONE:
        choice: Any = tools.mode.value
        if tools.function:
            choice = {"type": "function", "function": {"name": tools.function}}
        fields |= {"tools": tools.as_openai(), "tool_choice": choice}
    return fields


def _check_strict(tools: Tools | None, request: ChatCompletionRequest) -> None:
    """Raises InvalidRequestError if the model may call a strict tool, but nothing would enforce the tool's schema.

    vLLM enforces it by a structural tag, which not every parser has. Without one, vLLM ignores `strict`.
    """
    if tools is None or tools.function or tools.mode is not ToolMode.AUTO:
        return
    strict = next((tool.name for tool in tools.tools if tool.strict), None)
    structured = request.extract_structured_outputs()
    if strict is not None and (structured is None or structured.structural_tag is None):
        raise InvalidRequestError(
            f"the tool {strict!r} is strict, but this model's parser cannot enforce the schema of an optional call; "
            "require a call, or leave strict out",
            field="start.chat.tools",
        )


def _piece(call: Any) -> ToolCallPiece:
    function = call.function
    return ToolCallPiece(
        index=call.index,
        id=call.id or "",
        name=(function.name if function is not None else None) or "",
        arguments=(function.arguments if function is not None else None) or "",
    )


def _check_name(field: str, name: str, known: set[str]) -> None:
    known = known - _HARMONY
    if name in _HARMONY:
        raise ConfigurationError(
            f"engineArgs.{field}: {name} reads the harmony format of gpt-oss, which stages do not support; "
            "choose the parser of the checkpoint's model",
            field=f"engineArgs.{field}",
        )
    if name and name not in known:
        listed = ", ".join(sorted(known))
        raise ConfigurationError(
            f"engineArgs.{field}: vLLM has no such parser; known are {listed}", field=f"engineArgs.{field}"
        )
