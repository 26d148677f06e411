"""Unmodified OpenAI clients get text and speech through the gateway, from real engines."""

from __future__ import annotations

import httpx
import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from omni_proto.client import OmniClient
from support.peers.gateways import wait_for_metrics
from support.processes.pipelines import RunningPipeline
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.pipeline

MODEL = "tiny-omni"
QUESTION = "Tell me what the weather is like."


@pytest.fixture(scope="module")
def client(tiny_gateway: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{tiny_gateway}/v1", api_key="none", max_retries=0)


def test_models_are_listed_with_their_aliases(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL, "tts-1"]
    assert client.models.retrieve(MODEL).id == MODEL


def test_text_is_the_text_of_grpc(client: openai.OpenAI, tiny_pipeline: RunningPipeline) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], seed=5, max_completion_tokens=12
    )
    with OmniClient(tiny_pipeline.endpoint) as direct:
        result = direct.run(text=QUESTION, seed=5, modalities=["text"], sampling={"thinker": {"max_tokens": 12}})
    assert answer.choices[0].message.content == result.text
    assert answer.choices[0].finish_reason == result.finished["thinker"].finish_reason
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == result.finished["thinker"].usage.prompt_tokens
    assert answer.usage.completion_tokens == 12


def test_a_stream_has_the_same_text_and_ends_with_the_usage(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "seed": 5, "max_tokens": 300}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    # Tokens that become ready while the client does not read share a chunk. 300 tokens are too many for one chunk.
    assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) > 1


@pytest.mark.parametrize(
    ("changed", "status", "param", "code"),
    [
        ({"model": "nobody"}, 404, "model", "model_not_found"),
        ({"n": 2}, 400, "n", "unsupported_parameter"),
        ({"temperature": 3.0}, 400, "temperature", "invalid_value"),
        ({"messages": []}, 400, "messages", "invalid_value"),
        ({"extra_body": {"sampling": {}}}, 400, "sampling", "unknown_parameter"),
    ],
)
def test_what_is_wrong_is_named(
    client: openai.OpenAI, changed: dict[str, object], status: int, param: str, code: str
) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], **changed}
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**asked)
    assert (caught.value.status_code, caught.value.param, caught.value.code) == (status, param, code)
    assert caught.value.response.headers["x-request-id"].startswith("req_")


def test_langchain_streams_the_same_text(tiny_gateway: str, client: openai.OpenAI) -> None:
    model = ChatOpenAI(
        model=MODEL, base_url=f"{tiny_gateway}/v1", api_key=SecretStr("none"), seed=5, max_completion_tokens=12
    )
    whole = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], seed=5, max_completion_tokens=12
    )
    chunks = list(model.stream(QUESTION))
    assert "".join(str(chunk.content) for chunk in chunks) == whole.choices[0].message.content
    answer = model.invoke(QUESTION)
    assert answer.content == whole.choices[0].message.content
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 12


@pytest.mark.parametrize("path", ["responses", "embeddings"])
def test_what_is_not_there_is_refused_with_a_reason(tiny_gateway: str, path: str) -> None:
    answer = httpx.post(f"{tiny_gateway}/v1/{path}", json={"model": MODEL}, timeout=PATIENCE_S)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unsupported_endpoint"
    assert "use /v1/chat/completions" in answer.json()["error"]["message"] or path != "responses"


def test_metrics_count_what_was_answered(tiny_gateway: str, client: openai.OpenAI) -> None:
    client.models.list()
    scrape = "omni_gateway_inflight_requests 1.0"
    wait_for_metrics(tiny_gateway, 'omni_gateway_requests_total{route="/v1/models",status="200"}', scrape)
