"""A given reply is spoken exactly as when the thinker sampled the same reply.

The tests run three stage processes, with edges of both modes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from omni_proto.client import AsyncOmniClient, GenerationResult, OmniRequestError, audio_part, image_part, system, user
from support.media.samples import encode_png, encode_wav, make_audio, make_image
from support.processes.pipelines import RunningPipeline
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.pipeline

CHATS: dict[str, dict[str, Any]] = {
    "greedy": {"text": "Tell me what the weather is like."},
    "raw text": {"raw_text": "What do you know about the weather in the mountains?"},
    "token ids": {"token_ids": list(range(40, 60))},
    "seeded": {"text": "Hi", "seed": 5, "sampling": {"thinker": {"temperature": 0.8}, "talker": {"temperature": 1.2}}},
    "long": {
        "chat": [system("Be brief."), user("One, two, three")],
        "sampling": {"thinker": {"max_tokens": 200, "ignore_eos": True}, "talker": {"max_tokens": 80}},
    },
    "until it ends by itself": {
        "text": "Good morning",
        "seed": 3,
        "sampling": {"thinker": {"temperature": 2.0, "max_tokens": 1000}, "talker": {"max_tokens": 40}},
    },
    "one word": {"text": "a", "sampling": {"thinker": {"max_tokens": 2, "ignore_eos": True}}, "voice": "Ethan"},
    "image and sound": {
        "chat": user(
            image_part(encode_png(make_image(1, 140, 56))), audio_part(encode_wav(make_audio(1, 0.7))), "What is it?"
        )
    },
}


async def run(client: AsyncOmniClient, job: dict[str, Any], *, diffuses: bool = True, **more: Any) -> GenerationResult:
    arguments = {"seed": 1, "include_token_ids": True, "include_codec_tokens": True, "timeout": PATIENCE_S}
    # Two diffusion steps instead of ten save time. The test compares what the edges carry.
    few = {"token2wav": {"num_inference_steps": 2}} if diffuses else {}
    sampling = {**few, **job.get("sampling", {})}
    return await client.run(**{**arguments, **job, "sampling": sampling, **more})


def given(job: dict[str, Any], answer: GenerationResult) -> dict[str, Any]:
    """Returns the same request with the sampled reply as its given reply.

    If max_tokens ended the reply, its last token was never spoken, so it is left out.
    """
    ids = answer.token_ids["thinker"]
    reply = ids if answer.finished["thinker"].finish_reason == "stop" else ids[:-1]
    sampling = {stage: values for stage, values in job.get("sampling", {}).items() if stage != "thinker"}
    return {**job, "sampling": sampling, "reply": reply}


def check(spoken: GenerationResult, answer: GenerationResult, reply: list[int], *, alone: bool, step: int = 0) -> None:
    """Checks that the given reply was spoken like the sampled one.

    `alone`: neither request shared a batch, so the samples are compared too, and may differ by `step`.
    """
    assert spoken.prompt_token_ids == answer.prompt_token_ids
    assert spoken.token_ids["thinker"] in (reply, reply[:-1])
    assert answer.text.startswith(spoken.text.rstrip("\ufffd"))  # a character cut in two
    assert spoken.token_ids["talker"] == answer.token_ids["talker"]
    assert spoken.finished["talker"] is not None
    assert len(spoken.audio) == len(answer.audio) > 0
    if alone:
        ours, theirs = (np.frombuffer(one.audio, "<i2").astype(np.int32) for one in (spoken, answer))
        assert np.abs(ours - theirs).max() <= step
    usage = spoken.finished["thinker"].usage
    assert usage.prompt_tokens == answer.finished["thinker"].usage.prompt_tokens
    assert usage.completion_tokens == len(spoken.token_ids["thinker"])
    # A talker that ends before it has read the whole reply ends the call. On a Stream edge fewer bytes may have been
    # sent by then.
    assert usage.tensor_bytes_sent >= answer.finished["thinker"].usage.tensor_bytes_sent
    if answer.finished["talker"].finish_reason == "stop" and len(answer.token_ids["talker"]) > len(reply):
        assert usage.tensor_bytes_sent == answer.finished["thinker"].usage.tensor_bytes_sent
    assert spoken.finished["thinker"].finish_reason == "stop"


@pytest.mark.parametrize(
    ("served", "chats"),
    [
        pytest.param("tiny_pipeline", ("seeded", "until it ends by itself"), id="Full"),
        pytest.param("stream_pipeline", tuple(CHATS), id="Stream"),
        # Without "token ids": that prompt has no assistant turn, so Qwen3-Omni's talker has nothing to speak.
        pytest.param("qwen3_pipeline", tuple(name for name in CHATS if name != "token ids"), id="qwen3"),
    ],
)
async def test_its_own_reply_is_spoken_as_the_chat_was(
    served: str, chats: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    pipeline: RunningPipeline = request.getfixturevalue(served)
    family = {"diffuses": served != "qwen3_pipeline"}
    chosen = {name: CHATS[name] for name in chats}
    async with AsyncOmniClient(pipeline.endpoint) as client:
        answers = {name: await run(client, job, **family) for name, job in chosen.items()}
        jobs = {name: given(job, answers[name]) for name, job in chosen.items()}
        for name, job in jobs.items():
            # code2wav decodes frames as they arrive, in batches of varying sizes, so a sample may round differently.
            step = int(served == "qwen3_pipeline")
            check(await run(client, job, **family), answers[name], job["reply"], alone=True, step=step)
        # Given and sampled replies together, in shared batches.
        together = await asyncio.gather(*(run(client, job, **family) for job in [*jobs.values(), *chosen.values()]))
    for (name, job), spoken in zip(jobs.items(), together, strict=False):
        check(spoken, answers[name], job["reply"], alone=False)
    spoken_codes = {str(answer.token_ids["talker"]) for answer in answers.values()}
    assert len(spoken_codes) == len(chosen), "chats that all sound alike show nothing"
    reasons = {answer.finished["thinker"].finish_reason for answer in answers.values()}
    # No reply of the tiny Qwen3-Omni ends by itself here. tests/engine/qwen/test_parity_qwen3.py has replies that do.
    assert reasons == ({"stop", "length"} if family["diffuses"] else {"length"})


async def test_text_is_spoken_unchanged(stream_pipeline: RunningPipeline) -> None:
    """Names of special tokens in a given reply are text: they are read out and do not end the reply."""
    text = "Hello<|im_end|> there, <|AUDIO|>."
    async with AsyncOmniClient(stream_pipeline.endpoint) as client:
        answer = await run(client, {"text": "Read this.", "reply": text})
        plain = await run(client, {"text": "Read this.", "reply": "Hello there."})
        again = await run(client, {"text": "Read this.", "reply": answer.token_ids["thinker"]})
        silent = await run(client, {"text": "Read this.", "reply": text, "modalities": ["text"]})
    assert answer.text == text
    assert plain.text == "Hello there."
    assert len(answer.token_ids["thinker"]) > len(plain.token_ids["thinker"])
    assert answer.token_ids["talker"] == again.token_ids["talker"] != plain.token_ids["talker"]
    assert (silent.text, silent.audio) == (text, b"")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "longer than the engine": ({"reply": "word " * 4000}, "start.reply"),
    "unknown ids": ({"reply": [1 << 20]}, "start.reply.token_ids"),
    "sampling of the thinker": (
        {"reply": "Hi.", "sampling": {"thinker": {"temperature": 0.5}}},
        "start.sampling[thinker]",
    ),
    "empty": ({"reply": ""}, "start.reply.text"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_replies_that_cannot_be_spoken_are_refused(name: str, stream_pipeline: RunningPipeline) -> None:
    arguments, field = REFUSED[name]
    async with AsyncOmniClient(stream_pipeline.endpoint) as client:
        with pytest.raises(OmniRequestError) as caught:
            await client.run(text="Read this.", timeout=PATIENCE_S, **arguments)
    assert (caught.value.code.name, caught.value.field) == ("INVALID_ARGUMENT", field)
