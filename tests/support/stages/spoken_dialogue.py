"""A pipeline that hears, answers and speaks: three stages with scripted engines behind a gateway.

Everything but the engines is real, and so is OpenAI's client.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx2
import openai
import torch

from omni_gateway.entries.pipelines import ServedPipeline, StaticPipelines
from omni_gateway.http_server.app import create_app
from omni_gateway.settings import GatewaySettings
from omni_proto.pipeline.components import EngineKind
from omni_proto.stage_config import DownstreamStage, Modality, SamplingDefaults
from omni_stage.models.component import EdgeInput, FinishReason, SpokenSegment, StageRequest, StageStep, UserPrompt
from support.processes.polling import PATIENCE_S
from support.stages.scripted_component import ScriptedComponent
from support.stages.scripted_stages import EDGE_A, Kit, Stage, rows

HEARD = (" What is the capital", " of France?")
ANSWER = ("The capital of France", " is Paris.")
SEGMENTS = ((0.0, 1.24), (1.24, 1.9))
PCM = b"\x00" * 4800


class Dialogue:
    """Three stages, what they were asked, and a client of the gateway in front of them."""

    def __init__(self) -> None:
        self.heard: list[UserPrompt] = []
        self.asked: list[EdgeInput] = []
        """What the stage that answers read."""
        self.sampling: dict[str, SamplingDefaults] = {}
        self.cut = ""
        """The stage that ends at its maximum length."""
        self.entry: Stage
        self.http: httpx2.AsyncClient
        self.client: openai.AsyncOpenAI

    def _end(self, stage: str) -> FinishReason:
        return FinishReason.LENGTH if stage == self.cut else FinishReason.STOP

    async def hear(self, request: StageRequest) -> AsyncIterator[StageStep]:
        """Writes two segments, with their times if these are asked for; nothing if there is nothing to hear."""
        assert isinstance(request.source, UserPrompt)
        if request.source.reply is not None or request.source.written:
            yield StageStep(finish_reason=FinishReason.EMPTY_INPUT)
            return
        self.heard.append(request.source)
        self.sampling["asr"] = request.sampling
        timed = bool(request.source.template_arguments.get("timestamps"))
        for number, (text, segment) in enumerate(zip(HEARD, SEGMENTS, strict=True)):
            yield StageStep(
                text=text,
                segments=[SpokenSegment(text, *segment)] if timed else (),
                token_ids=[number],
                prompt_token_ids=None if number else [1, 2, 3, 4],
                tensors=_tensors(request, number),
                scheduled_ns=time.monotonic_ns(),
            )
        yield StageStep(finish_reason=self._end("asr"), tensors=_tensors(request, 2))

    async def answer(self, request: StageRequest) -> AsyncIterator[StageStep]:
        """Writes two pieces of text, or a given reply."""
        assert isinstance(request.source, EdgeInput)
        self.asked.append(request.source)
        given = request.source.context and request.source.context.reply
        self.sampling["llm"] = request.sampling
        for number, text in enumerate((given.text or "",) if given else ANSWER):
            yield StageStep(
                text=text,
                token_ids=[number],
                prompt_token_ids=None if number else [1, 2, 3, 4, 5, 6],
                tensors=_tensors(request, number),
            )
        yield StageStep(finish_reason=self._end("llm"), tensors=_tensors(request, 2))

    async def speak(self, request: StageRequest) -> AsyncIterator[StageStep]:
        """Speaks 0.1 s of silence."""
        yield StageStep(audio=torch.zeros(2400), finish_reason=FinishReason.DIFFUSION_DONE)

    async def start(self, stack: AsyncExitStack, *, times_words: bool = True, takes_reply: bool = True) -> None:
        """Serve the stages and the gateway until the stack closes."""
        kit = Kit(stack)
        voice = await kit.serve(
            self.speak,
            stage="voice",
            outputs=["Audio"],
            input={"source": "llm"},
            component=ScriptedComponent(
                kind=EngineKind.DECODER,
                input_schema=EDGE_A,
                voices=("Ada",),
                writes_text=False,
                default_sampling=SamplingDefaults(),
            ),
        )
        llm = await kit.serve(
            self.answer,
            stage="llm",
            outputs=["Text"],
            input={"source": "asr"},
            downstream=[kit.edge("voice", voice.target, ["voice"])],
            component=ScriptedComponent(input_schema=EDGE_A, output_schema=EDGE_A, takes_reply=takes_reply),
        )
        self.entry = await kit.serve(
            self.hear,
            stage="asr",
            outputs=["Transcript"],
            answeringStage="llm",
            downstream=[
                DownstreamStage(
                    stage="llm",
                    target=llm.target,
                    component="test/stage",
                    stages=["llm", "voice"],
                    outputs=[Modality.TEXT, Modality.AUDIO],
                )
            ],
            component=ScriptedComponent(
                output_schema=EDGE_A, outputs=(Modality.TRANSCRIPT,), media=("audio",), times_words=times_words
            ),
        )
        await self._open(stack, self.entry, GatewaySettings())

    async def _open(self, stack: AsyncExitStack, entry: Stage, settings: GatewaySettings) -> None:
        app = create_app(StaticPipelines((ServedPipeline("m", f"grpc://{entry.target}"),)), settings)
        stack.push_async_callback(app.state.gateway.entries.close)
        self.http = await stack.enter_async_context(
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://gateway", timeout=PATIENCE_S)
        )
        self.client = openai.AsyncOpenAI(
            base_url="http://gateway/v1", api_key="none", max_retries=0, http_client=self.http
        )


def _tensors(request: StageRequest, number: int) -> dict[str, torch.Tensor]:
    if not request.want_tensors:
        return {}
    return {"x": rows(1, number), "ids": torch.tensor([number])}
