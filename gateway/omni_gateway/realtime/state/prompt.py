"""Turns the items of a conversation into the messages of a chat completion. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omni_gateway.realtime.state.config import Config
from omni_gateway.realtime.state.items import Content, Item


@dataclass(slots=True)
class Prompt:
    """What a response is asked from."""

    body: dict[str, Any]
    """The body of a chat completion. The data of its audio is empty; `audio` has it."""
    audio: list[Content] = field(default_factory=list)
    """The audio parts, in their order."""
    paths: list[list[str]] = field(default_factory=list)
    """For each message, the client's name of each of its parts, for errors."""


def build_prompt(config: Config, items: Sequence[Item], model: str) -> Prompt:
    """Returns the prompt of a response. config: what holds for it."""
    prompt = Prompt({"model": model, "messages": [], "modalities": ["audio", "text"] if config.speaks else ["text"]})
    messages = prompt.body["messages"]
    if config.instructions:
        messages.append({"role": "system", "content": config.instructions})
        prompt.paths.append(["session.instructions"])
    for item in items:
        _add(prompt, messages, item)
    if config.speaks:
        prompt.body["audio"] = {"format": "pcm16", "voice": config.audio.output.voice or None}
    if config.max_output_tokens != "inf":
        prompt.body["max_completion_tokens"] = config.max_output_tokens
    if config.tools:
        prompt.body["tools"] = [
            {"type": "function", "function": {name: one.view()[name] for name in one.view() if name != "type"}}
            for one in config.tools
        ]
        choice = config.tool_choice
        named = isinstance(choice, dict)
        prompt.body["tool_choice"] = (
            {"type": "function", "function": {"name": choice["name"]}} if isinstance(choice, dict) and named else choice
        )
    return prompt


def _add(prompt: Prompt, messages: list[dict[str, Any]], item: Item) -> None:
    place = f"item {item.id}"
    if item.type == "function_call":
        if item.status != "completed":
            return  # its arguments are no JSON
        call = {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
        if messages and messages[-1]["role"] == "assistant":
            messages[-1].setdefault("tool_calls", []).append(call)
            return
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        prompt.paths.append([])
    elif item.type == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
        prompt.paths.append([place])
    elif item.role == "user":
        parts = [(index, part) for index, part in enumerate(item.content) if part.audio or part.text]
        if not parts:
            return
        messages.append({"role": "user", "content": [_view_part(one) for _, one in parts]})
        prompt.audio += [one for _, one in parts if one.audio]
        prompt.paths.append([f"{place}.content[{index}]" for index, _ in parts])
    else:
        text = "".join(one.text for one in item.content)
        if text:
            messages.append({"role": item.role, "content": text})
            prompt.paths.append([f"{place}.content"])


def _view_part(part: Content) -> dict[str, Any]:
    if part.audio:
        return {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    if part.type == "input_image":
        return {"type": "image_url", "image_url": {"url": part.text}}
    return {"type": "text", "text": part.text}
