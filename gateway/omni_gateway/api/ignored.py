"""Fields of a request that are ignored, because they are hints or because the setting unsupportedFields is Ignore."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from pydantic import BaseModel

from omni_gateway.api.body_paths import join_keys
from omni_gateway.context import Call, Gateway
from omni_gateway.errors import UnsupportedError
from omni_gateway.openai.chat_unsupported import Unread, Without
from omni_gateway.settings import UnsupportedFields

NEEDED: Final = frozenset(
    (
        *("documents", "continue_final_message", "prefix", "partial", "prompt_embeds"),
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "allowed_token_ids", "bad_words"),
        *("guardrails", "safe_prompt", "safety_settings", "moderation"),
    )
)
"""Unknown fields that are refused nevertheless: without them, the model reads another conversation, or an answer lacks
a form or a protection on which the client relies."""
NEEDED_OF_BODY: Final = frozenset(
    (
        *("system", "system_prompt", "system_instruction", "instructions", "prompt", "input", "contents"),
        *("chat_template", "truncate_prompt_tokens"),
        *("format", "grammar", "json_schema", "regex", "ebnf", "structural_tag", "guided_decoding"),
    )
)
"""The same for fields of the body itself, by the names of other servers' APIs: of Anthropic, Gemini, OpenAI's
Responses, vLLM, SGLang, llama.cpp and Ollama. Inside messages and parts these names are labels."""


def check_unread(gateway: Gateway, call: Call, found: Iterable[Unread]) -> None:
    """Note the values that are ignored. Raises UnsupportedError for the first one that is not."""
    lenient = gateway.settings.unsupported_fields is UnsupportedFields.IGNORE
    for one in found:
        if one.without is Without.HINT or (lenient and one.without is Without.MEANING):
            call.ignored.append(one.path)
        else:
            raise UnsupportedError(f"{one.why}.", param=one.path)


def drop_unknown(body: Any, model: type[BaseModel]) -> list[str]:
    """Removes from a body the fields that the model does not know. Returns their paths.

    Raises pydantic's ValidationError for a body with other problems, so that the error is not about an unknown field.
    """
    return list(_drop_unknown((), body, model.model_validate(body, from_attributes=True, extra="ignore")))


def _drop_unknown(keys: tuple[str | int, ...], body: Any, read: Any) -> Iterator[str]:
    if isinstance(body, list) and isinstance(read, list | tuple):
        for place, (item, known) in enumerate(zip(body, read, strict=True)):
            yield from _drop_unknown((*keys, place), item, known)
    elif isinstance(body, dict) and isinstance(read, BaseModel):
        known = {field.alias or name: name for name, field in type(read).model_fields.items()}
        for name in list(body):
            if name in known:
                yield from _drop_unknown((*keys, name), body[name], getattr(read, known[name]))
            elif body[name] is not None and name not in NEEDED and (keys or name not in NEEDED_OF_BODY):
                del body[name]
                yield join_keys((*keys, name))
