"""What clients of OpenAI's API can send, and what becomes of it: tests/data/clients/shapes.yaml, sent to a gateway."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import yaml

from omni_stage.models.component import ChatMessage, TextPart, UserPrompt
from support.stages.served_gateway import Served, with_media

SHAPES = yaml.safe_load(Path("tests/data/clients/shapes.yaml").read_text(encoding="utf-8"))
BASES: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "speech": {"model": "m", "input": "Good morning!"},
}
PATHS = {"chat": "/v1/chat/completions", "speech": "/v1/audio/speech"}
HEADER = "x-omnipipeline-ignored"


def describe(message: ChatMessage) -> str:
    """Returns a message as the table writes it."""
    parts = [
        part.text if isinstance(part, TextPart) else f"<{type(part).__name__.removesuffix('Part').lower()}>"
        for part in message.parts
    ]
    calls = [f"{call.name}({', '.join(call.arguments)})" for call in message.tool_calls]
    return f"{message.role}: {'|'.join(parts + calls)}"


def test_the_table_is_complete() -> None:
    """Each row names a client and where its shape comes from; ten clients and four languages are in it."""
    assert all(
        row["client"] and row["source"] and row["verdict"] in ("accepted", "ignored", "refused") for row in SHAPES
    )
    names = " ".join(row["client"] + row["source"] for row in SHAPES).lower()
    known = ("openai-python", "openai for node", "openai-go", "openai-java", "openai-dotnet", "langchain-openai")
    known += ("@langchain/openai", "llama-index", "litellm", "vercel ai sdk", "open webui", "librechat", "cline")
    known += ("continue", "goose", "spring ai", "semantic kernel", "home assistant", "kokoro")
    assert [name for name in known if name not in names] == []


async def test_each_shape_gets_its_verdict() -> None:
    served, wrong = Served(), []
    async with AsyncExitStack() as stack:
        await served.start(stack)
        for row in SHAPES:
            served.asked.clear()
            route = row.get("route", "chat")
            body = {**BASES[route], **with_media(row["body"])}
            answer = await served.clients[row.get("lenient", False)].post(PATHS[route], json=body)
            found = judge(row, answer, served.asked)
            if found:
                wrong.append(f"{row['client']}: {found} ({answer.status_code} {answer.text[:300]})")
    assert wrong == []


def judge(row: dict[str, Any], answer: httpx.Response, asked: list[UserPrompt]) -> str:
    """Returns what is wrong with an answer; empty if it is as the row says."""
    if row["verdict"] != "refused":
        if answer.status_code != 200:
            return "not accepted"
        if answer.headers.get(HEADER) != row.get("ignored"):
            return f"ignored {answer.headers.get(HEADER)}"
        read = [describe(message) for message in asked[0].messages or ()]
        return "" if row.get("reads", read) == read else f"reads {read}"
    if answer.status_code != 400:
        return "not refused"
    error = answer.json()["error"]
    for name in ("param", "code"):
        if error[name] != row.get(name, error[name]):
            return f"{name} is {error[name]}"
    return "" if row.get("says", "") in error["message"] else "says something else"
