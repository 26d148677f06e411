"""What a request asks of asr/whisper: the audio, the task, the language, the prompt. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from omni_stage.errors import InvalidRequestError
from omni_stage.models.asr.vocabulary import TASKS, WhisperTokens
from omni_stage.models.component import AudioPart, TextPart, UserPrompt

_ARGUMENTS: Final = "start.chat.template_arguments"


@dataclass(frozen=True, slots=True)
class Wish:
    """The options of a request."""

    task: str = "transcribe"
    language: int | None = None
    """Id of the language's token; None: the model names it, or knows only one."""
    prompt: str = ""
    timed: bool = False
    """Whether the client asks when words were spoken."""


def find_audio(source: UserPrompt) -> tuple[AudioPart, str]:
    """Returns the audio of the conversation's last message, and its path in Start. Earlier messages are not read.

    Raises InvalidRequestError if that message is anything but one audio file.
    """
    if not source.messages:
        raise InvalidRequestError(
            "component asr/whisper hears; send a chat message with one audio file", field="start.input"
        )
    number = len(source.messages) - 1
    path, parts = f"start.chat.messages[{number}].parts", source.messages[number].parts
    heard = [(part, f"{path}[{index}].audio") for index, part in enumerate(parts) if isinstance(part, AudioPart)]
    if len(heard) != 1 or source.messages[number].role != "user":
        raise InvalidRequestError(
            f"component asr/whisper hears one audio file, in the last message, of the user; it has {len(heard)}",
            field=path,
        )
    if any(part.text.strip() for part in parts if isinstance(part, TextPart)):
        raise InvalidRequestError(
            "component asr/whisper reads no text beside the audio; say it, or send it in "
            f"{_ARGUMENTS}.prompt as a hint",
            field=path,
        )
    return heard[0]


def read_wish(arguments: Mapping[str, Any], tokens: WhisperTokens) -> Wish:
    """Returns the options in a prompt's template arguments; unknown ones are ignored. Raises InvalidRequestError."""
    task, timed = arguments.get("task", "transcribe"), arguments.get("timestamps", False)
    if task not in TASKS or (task == "translate" and not tokens.tasks):
        known = TASKS if tokens.tasks else TASKS[:1]
        raise _bad("task", f"must be {' or '.join(known)} for this checkpoint", ", ".join(known))
    if not isinstance(timed, bool):
        raise _bad("timestamps", "must be true or false", "true, false")
    prompt = arguments.get("prompt", "")
    if not isinstance(prompt, str):
        raise _bad("prompt", "must be a text", "text")
    return Wish(task, _find_language(arguments.get("language"), tokens), prompt.strip(), timed)


def _find_language(given: Any, tokens: WhisperTokens) -> int | None:
    if given is None or given == "":
        return None
    code = given.partition("-")[0].lower() if isinstance(given, str) else ""
    if not tokens.languages and code == "en":
        return None
    if code not in tokens.languages:
        known = ", ".join(sorted(tokens.languages)) or "en"
        raise _bad("language", f"is not one that the checkpoint knows; these are {known}", known)
    return tokens.languages[code]


def _bad(name: str, problem: str, limit: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} {problem}", field=f"{_ARGUMENTS}.{name}", limit=limit)
