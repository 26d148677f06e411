"""A gateway in front of stages with scripted engines, as a client sees it. Everything but the engines is real."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import torch
from PIL import Image

from omni_gateway.entries.pipelines import ServedPipeline, StaticPipelines
from omni_gateway.http_server.app import create_app
from omni_gateway.settings import GatewaySettings
from omni_stage.models.component import FinishReason, StageRequest, StageStep, UserPrompt
from support.processes.polling import PATIENCE_S
from support.stages.scripted_component import ScriptedComponent
from support.stages.scripted_stages import EDGE_A, Kit


def wav(seconds: float = 0.1) -> str:
    """Returns a WAV of silence in base64."""
    size = int(seconds * 32_000)
    head = (
        b"RIFF"
        + (36 + size).to_bytes(4, "little")
        + b"WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0"
    )
    return base64.b64encode(head + b"data" + size.to_bytes(4, "little") + bytes(size)).decode()


def png() -> str:
    """Returns a small PNG as a data URI."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def with_media(value: Any) -> Any:
    """Returns the value of the table with real media in place of PNG and WAV."""
    if isinstance(value, dict):
        return {name: with_media(one) for name, one in value.items()}
    if isinstance(value, list):
        return [with_media(one) for one in value]
    if isinstance(value, str):
        return png() if value == "PNG" else value.removesuffix("WAV") + wav() if value.endswith("WAV") else value
    return value


async def speak(request: StageRequest) -> AsyncIterator[StageStep]:
    """Speaks 0.1 s of silence."""
    yield StageStep(audio=torch.zeros(2400), finish_reason=FinishReason.STOP)


class Served:
    """A gateway in front of a stage that keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[UserPrompt] = []
        self.clients: dict[bool, httpx.AsyncClient] = {}

    async def answer(self, request: StageRequest) -> AsyncIterator[StageStep]:
        assert isinstance(request.source, UserPrompt)
        self.asked.append(request.source)
        yield StageStep(text="Hello", token_ids=[1], prompt_token_ids=[1], finish_reason=FinishReason.STOP)

    async def start(self, stack: AsyncExitStack) -> None:
        kit = Kit(stack)
        able: dict[str, Any] = {"takes_tools": True, "takes_reply": True, "structures_text": True}
        speaker = await kit.serve(
            speak,
            stage="speaker",
            outputs=["Audio"],
            input={"source": "thinker"},
            component=ScriptedComponent(input_schema=EDGE_A, voices=("Ada",)),
        )
        entry = await kit.serve(
            self.answer,
            component=ScriptedComponent(output_schema=EDGE_A, **able),
            max_model_len=8192,
            engineArgs={"toolCallParser": "hermes"},
            limits={"refusalsPerSecond": 10_000},
            downstream=[kit.edge("speaker", speaker.target, ["speaker"])],
        )
        for lenient in (False, True):
            settings = GatewaySettings.model_validate({"unsupportedFields": "Ignore" if lenient else "Refuse"})
            app = create_app(StaticPipelines((ServedPipeline("m", f"grpc://{entry.target}"),)), settings)
            transport = httpx.ASGITransport(app)
            client = httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=PATIENCE_S)
            self.clients[lenient] = await stack.enter_async_context(client)
            stack.push_async_callback(app.state.gateway.entries.close)
