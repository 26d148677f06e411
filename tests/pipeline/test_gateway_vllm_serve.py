"""Text, reasoning and tool calls of the gateway beside those of `vllm serve` with the same model and parsers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from omni_cli.local.ports import pick_ports
from omni_gateway.pipelines import ServedPipeline
from support.controlplane.process import ChildProcess
from support.forked_pipelines import fork_pipeline
from support.gateways import serve_gateway
from support.scripted_text import write_scripted_checkpoint

# Two servers of vLLM. tests/engine/test_llm_reply_forms.py holds the parsers in one engine of this process.
pytestmark = [pytest.mark.pipeline, pytest.mark.full]

MODEL = "text"
SCRIPTS = {
    "#think#": [
        "<think>", "She wants", " the weather", " of two towns.", "</think>", "\n\n",
        "I will", " look.", "\n", "#call#",
    ],
    "#call#": [
        "<tool_call>", '\n{"name": "', "weather", '", "arguments": {"city": "', "Ro", "me", '", "days": ', "2", "}}\n",
        "</tool_call>", "\n<tool", "_call>\n",
        '{"name"', ': "clock"', ', "arguments"', ": {", "}}", "\n</tool", "_call>",
    ],
    "#say#": ["Hello", ",", " how are", " you?"],
}  # fmt: skip
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "enum": [1, 2]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
TOOLS = {"tools": [WEATHER, CLOCK]}
STRICT = {"tools": [{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]}
NAMED = {"tool_choice": {"type": "function", "function": {"name": "weather"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER["function"]["parameters"]}}
PAST = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "#say#"},
]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("#say#", {}),
    "text that could call": ("#say#", TOOLS),
    "reasoning": ("#think#", {}),
    "reasoning that is cut": ("#think#", {"max_completion_tokens": 3}),
    "calls": ("#call#", TOOLS),
    "calls that are cut": ("#call#", {**TOOLS, "max_completion_tokens": 6}),
    "calls after reasoning and text": ("#think#", TOOLS),
    "calls that may not be": ("#call#", {**TOOLS, "tool_choice": "none"}),
    "calls of strict tools": ("#think#", {"tools": [*STRICT["tools"], CLOCK]}),
    "a call that must be": ("#think#", {**STRICT, "tool_choice": "required", "max_completion_tokens": 300}),
    "the call that must be": ("#think#", {**STRICT, **NAMED, "max_completion_tokens": 300}),
    "a form": ("#think#", {"response_format": SCHEMA, "max_completion_tokens": 300}),
    "an answer to a tool": ("", {**TOOLS, "messages": PAST}),
}


@dataclass
class Answer:
    """What an answer says, however it was cut into chunks."""

    reasoning: str = ""
    content: str = ""
    calls: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Index -> name and arguments."""
    order: list[str] = field(default_factory=list)
    """The kinds of its parts, as they came; a run of one kind once."""
    ids: set[str] = field(default_factory=set)
    finish_reason: str = ""
    usage: dict[str, int] = field(default_factory=dict)

    def comparable(self) -> dict[str, Any]:
        """All but the calls' ids, which are made up."""
        calls = {index: (name, _as_json(arguments)) for index, (name, arguments) in self.calls.items()}
        order = [kind for kind, _ in groupby(self.order)]
        return {**vars(self), "calls": calls, "ids": len(self.ids), "order": order}


def _as_json(arguments: str) -> Any:
    """vLLM writes the arguments of some whole answers anew, with other spaces. Those of a cut call are no JSON."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


@pytest.fixture(scope="module", params=["qwen3", ""], ids=["reasoning-parser", "no-reasoning-parser"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """URLs of the gateway and of `vllm serve`."""
    folder = tmp_path_factory.mktemp("serve")
    checkpoint = write_scripted_checkpoint(folder / "checkpoint", SCRIPTS)
    arguments = {"dtype": "float32", "maxNumSeqs": 8, "kvCacheMemoryMib": 64, "toolCallParser": "hermes"}
    if request.param:
        arguments["reasoningParser"] = request.param
    stage = {"name": "llm", "component": "generic/llm", "engineArgs": arguments, "outputs": ["Text"]}
    spec = {"model": {"uri": "hf://tiny/scripted"}, "stages": [stage]}
    file = folder / "text.yaml"
    resource = {
        "apiVersion": "omnipipeline.io/v1alpha1",
        "kind": "OmniPipeline",
        "metadata": {"name": MODEL},
        "spec": spec,
    }
    file.write_text(yaml.safe_dump(resource))
    (port,) = pick_ports(1)
    # `vllm serve` itself asks for the metadata of "vllm", which its build for CPUs has under another name.
    command: list[str | Path] = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", checkpoint]
    # As here: tools that may not be called are not shown to the model.
    command += ["--exclude-tools-when-tool-choice-none"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", MODEL, "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8"]
    command += ["--kv-cache-memory-bytes", str(64 * 2**20), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    command += ["--reasoning-parser", request.param] if request.param else []
    vllm = ChildProcess("vllm-serve", command, folder / "vllm.log")
    vllm.start()
    try:
        with fork_pipeline(file, checkpoint, folder) as running:
            vllm.wait_until(lambda: _answers(f"http://127.0.0.1:{port}/health"), timeout_s=400)
            with serve_gateway(ServedPipeline(MODEL, f"grpc://{running.endpoint}")) as url:
                yield url, f"http://127.0.0.1:{port}"
    finally:
        vllm.stop(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.TransportError:
        return False


def _ask(server: str, said: str, changed: dict[str, Any]) -> dict[str, Any]:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": said}], "temperature": 0, **changed}
    answer = httpx.post(f"{server}/v1/chat/completions", json=asked, timeout=120)
    assert answer.is_success, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


def _stream(server: str, said: str, changed: dict[str, Any]) -> list[dict[str, Any]]:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": said}], "temperature": 0, **changed}
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{server}/v1/chat/completions", json=asked, timeout=120) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines
    return [json.loads(line) for line in lines[:-1]]


def _usage(usage: dict[str, Any]) -> dict[str, int]:
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


def read_whole(whole: dict[str, Any]) -> Answer:
    (choice,) = whole["choices"]
    message = choice["message"]
    answer = Answer(message.get("reasoning") or "", message["content"] or "", finish_reason=choice["finish_reason"])
    for index, call in enumerate(message.get("tool_calls") or ()):
        assert call["type"] == "function"
        answer.calls[index] = (call["function"]["name"], call["function"]["arguments"])
        answer.ids.add(call["id"])
    answer.usage = _usage(whole["usage"])
    return answer


def read_stream(chunks: list[dict[str, Any]]) -> Answer:
    answer = Answer()
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    for chunk in chunks:
        for choice in chunk["choices"]:
            _read_delta(answer, choice["delta"])
            answer.finish_reason = choice["finish_reason"] or answer.finish_reason
    answer.usage = _usage(chunks[-1]["usage"])
    return answer


def _read_delta(answer: Answer, delta: dict[str, Any]) -> None:
    if text := delta.get("reasoning"):
        answer.reasoning += text
        answer.order.append("reasoning")
    if text := delta.get("content"):
        answer.content += text
        answer.order.append("content")
    for piece in delta.get("tool_calls") or ():
        name, arguments = answer.calls.get(piece["index"], ("", ""))
        function = piece["function"]
        answer.calls[piece["index"]] = (
            name + (function.get("name") or ""),
            arguments + (function.get("arguments") or ""),
        )
        if piece.get("id"):
            assert piece["type"] == "function"
            answer.ids.add(piece["id"])
        answer.order.append(f"call {piece['index']}")


@pytest.mark.parametrize("case", CASES)
def test_streams_say_the_same(servers: tuple[str, str], case: str) -> None:
    ours, theirs = (read_stream(_stream(server, *CASES[case])).comparable() for server in servers)
    assert ours == theirs


@pytest.mark.parametrize("case", CASES)
def test_whole_answers_say_the_same(servers: tuple[str, str], case: str) -> None:
    ours = read_whole(_ask(servers[0], *CASES[case])).comparable()
    if "cut" in case or case == "calls that may not be":
        # vLLM's whole answers differ from its streams: a call that is cut is text in them, and with a parser of
        # reasoning a call that may not be is content alone. Here both say what its streams say.
        theirs = {**read_stream(_stream(servers[1], *CASES[case])).comparable(), "order": []}
    else:
        theirs = read_whole(_ask(servers[1], *CASES[case])).comparable()
    assert ours == theirs
