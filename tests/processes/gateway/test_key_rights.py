"""A gateway with keys in front of two entry stages: each key sees and uses its models only, and its salt is its own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.guard.keys import hash_key
from omni_gateway.settings import GatewaySettings
from support.peers.answering_entry import Starts, serve_entry
from support.peers.gateways import serve_gateway
from support.processes.polling import PATIENCE_S

KEYS = {
    "admin": "",
    "chats": "models: [chat], priority: {min: 0, max: 10}, structuredOutput: Json",
    "team": "models: ['team-b/*'], structuredOutput: None, cacheSalt: Caller",
    "nothing": "models: [no-such-model]",
}
ADDRESSES = {"chats": ("chat", "team-a/chat", "gpt-4o"), "team": ("team-b/chat",)}
SAY = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Starts]]:
    """Yields the URL of the gateway, and what its entry stage received."""
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    entries = [f"- {{name: {name}, sha256: {hash_key(name)}, {rights}}}" for name, rights in KEYS.items()]
    file.write_text("keys:\n" + "\n".join(entries).replace(", }", "}"))
    with serve_entry() as (port, starts):
        pipelines = (
            ServedPipeline("chat", f"grpc://127.0.0.1:{port}", namespace="team-a", aliases=("gpt-4o",)),
            ServedPipeline("chat", f"grpc://127.0.0.1:{port}", namespace="team-b", has_name=False),
        )
        with serve_gateway(*pipelines, settings=GatewaySettings(keys_file=file)) as url:
            yield url, starts


def client(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("key", "models"),
    [
        ("admin", ["chat", "team-b/chat", "gpt-4o"]),
        ("chats", ["chat", "gpt-4o"]),
        ("team", ["team-b/chat"]),
        ("nothing", []),
    ],
)
def test_the_lists_show_the_models_of_a_key(served: tuple[str, Starts], key: str, models: list[str]) -> None:
    with client(served[0], key) as http:
        for path in ("/v1/models", "/v1/audio/models"):
            assert [one["id"] for one in http.get(path).json()["data"]] == models
        voices = {one["model"] for one in http.get("/v1/audio/voices").json()["data"]}
        assert voices == {model for model in models if model != "gpt-4o"}


@pytest.mark.parametrize("key", ["chats", "team"])
def test_a_model_of_another_does_not_exist(served: tuple[str, Starts], key: str) -> None:
    """By whatever name it is asked for, on every route, it is answered as a model that nobody has."""
    with client(served[0], key) as http:
        for owner, addresses in ADDRESSES.items():
            for model in addresses:
                answers = [
                    http.post("/v1/chat/completions", json={"model": model, **SAY}),
                    http.post("/v1/audio/speech", json={"model": model, "input": "hi", "response_format": "pcm"}),
                    http.get(f"/v1/models/{model}"),
                    http.get("/v1/audio/voices", params={"model": model}),
                ]
                expected = 200 if owner == key else 404
                assert [one.status_code for one in answers] == [expected] * 4, (model, answers[0].text)
                if owner != key:
                    unknown = http.post("/v1/chat/completions", json={"model": "nobody", **SAY}).json()
                    for answer in answers:
                        assert answer.json() == {
                            "error": unknown["error"]
                            | {"message": unknown["error"]["message"].replace("'nobody'", repr(model))}
                        }


@pytest.mark.parametrize(
    ("key", "fields", "param"),
    [
        ("chats", {"priority": -1}, "priority"),
        ("chats", {"priority": 11}, "priority"),
        ("chats", {"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ("team", {"response_format": {"type": "json_object"}}, "response_format"),
        ("team", {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ],
)
def test_what_a_key_may_not_send_reaches_no_stage(
    served: tuple[str, Starts], key: str, fields: dict[str, object], param: str
) -> None:
    url, starts = served
    before = len(starts)
    with client(url, key) as http:
        answer = http.post("/v1/chat/completions", json={"model": ADDRESSES[key][0], **SAY, **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert len(starts) == before


def test_salt_and_priority_reach_the_stage(served: tuple[str, Starts]) -> None:
    """Every request of a key has the key's salt, on every route, also if the caller gives one."""
    url, starts = served

    def send(key: str, **fields: object) -> tuple[str, int]:
        with client(url, key) as http:
            assert http.post("/v1/chat/completions", json={"model": ADDRESSES[key][0], **SAY, **fields}).is_success
        return starts[-1].cache_salt, starts[-1].priority

    plain = send("chats")
    assert (len(plain[0]), plain[1]) == (64, 0)
    assert send("chats", priority=10) == (plain[0], 10)
    salted = send("chats", cache_salt="mine")[0]
    assert len({plain[0], salted, "mine", ""}) == 4
    assert send("chats", cache_salt="mine")[0] == salted
    with client(url, "chats") as http:
        assert http.post("/v1/audio/speech", json={"model": "chat", "input": "hi", "response_format": "pcm"}).is_success
    assert starts[-1].cache_salt == plain[0]
    assert send("team") == ("", 0)
    assert send("team", cache_salt=plain[0])[0] == plain[0]  # only who knows a salt can send it, and nobody knows it
