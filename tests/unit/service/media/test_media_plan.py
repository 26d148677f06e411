"""The cost of media is computed from their headers and reserved before anything is decoded.

This cost is compared with what Start announced.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from omni_proto.media_headers import read_header
from omni_proto.media_headers.image import ImageHeader
from omni_proto.runtime.limits import MAX_CHAT_PARTS
from omni_proto.stage.v1 import prompt_pb2, stage_service_pb2 as pb
from omni_proto.stage_config import Limits, MediaLimits
from omni_stage.errors import (
    ByteBudgetExceededError,
    InvalidMediaError,
    InvalidRequestError,
    PromptTooLongError,
    RequestTooLargeError,
)
from omni_stage.models.component import MediaCost
from omni_stage.service.guard.admission import Admission
from omni_stage.service.media.planning import plan_medium, receive_media
from omni_stage.service.media.slots import MediaKind, MediaRules, MediaSlot
from omni_stage.service.request.planning.prompt import is_light, plan_prompt
from support.media.audios import COMPRESSED, encode_audio, encode_tone
from support.media.hostile_files import flac, flat_png, with_frames
from support.media.samples import encode_png, encode_wav, make_audio, make_image
from support.stages import scripted_stages as lab
from support.stages.scripted_stages import ScriptedComponent

RULES = MediaRules(Limits(), MediaLimits(), ScriptedComponent(), 4096)
PNG = encode_png(make_image())
WAV = encode_wav(make_audio())


def chat(*parts: prompt_pb2.ContentPart) -> pb.Start:
    return pb.Start(chat=prompt_pb2.ChatPrompt(messages=[prompt_pb2.ChatMessage(role="user", parts=parts)]))


def image(data: bytes = PNG) -> prompt_pb2.ContentPart:
    return prompt_pb2.ContentPart(image=prompt_pb2.Media(data=data))


def chunked(size: int, decoded: int = 0, kind: MediaKind = "image") -> MediaSlot:
    reference = prompt_pb2.MediaReference(media_id=1, total_bytes=size, decoded_bytes=decoded)
    return plan_medium(prompt_pb2.Media(chunked=reference), "f", kind, RULES)


def test_a_bomb_reserves_its_decoded_size() -> None:
    """A PNG of 2 kB and one of 20 MB cost the same if their width and height are equal."""
    small = plan_medium(prompt_pb2.Media(data=flat_png(4096, 4096)), "f", "image", RULES)
    assert small.size < 4000
    assert small.held_bytes > 4096 * 4096 * 20


def cost_of(costs: Any) -> SimpleNamespace:
    """Returns a component with these costs."""
    return SimpleNamespace(
        audio_rate_hz=16_000,
        max_aspect_ratio=200,
        max_audio_samples=costs.max_samples,
        image_cost=costs.image,
        audio_cost=costs.audio,
    )


@pytest.mark.parametrize(
    ("width", "height"), [(1, 1), (1, 200), (200, 1), (28, 5600), (333, 2), (4096, 4096), (800, 600)]
)
def test_what_is_announced_covers_what_comes(width: int, height: int) -> None:
    """Uses the costs of the real thinker, which rounds sides up to whole patches and enlarges small images."""
    from omni_stage.models.shared.media_cost import MediaCosts

    costs = MediaCosts(3136, 12_845_056, 4_800_000, 28, 640, pads_to_limit=True)
    takes = cost_of(costs)
    rules = replace(RULES, takes=takes, max_model_len=32_768)
    data = flat_png(width, height)
    for decoded in (0, read_header(data, "image").decoded_bytes):
        reference = prompt_pb2.MediaReference(media_id=1, total_bytes=len(data), decoded_bytes=decoded)
        slot = plan_medium(prompt_pb2.Media(chunked=reference), "f", "image", rules)
        (judged,) = receive_media([slot], {1: data}, rules)
        assert judged.held_bytes <= slot.held_bytes
        assert isinstance(judged.header, ImageHeader)


def test_nothing_announced_reserves_the_cap() -> None:
    """Media without an announced decoded size reserve the largest size that is allowed."""
    assert chunked(100).held_bytes >= chunked(100, RULES.media.max_image_pixels * 3).held_bytes
    assert chunked(100, kind="audio").held_bytes >= 300 * 16_000 * 4
    assert chunked(100, 3).held_bytes < chunked(100).held_bytes // 100


@pytest.mark.parametrize(
    ("slot", "data"),
    [
        pytest.param(chunked(len(PNG), 3), PNG, id="image"),
        pytest.param(chunked(len(WAV), 4, kind="audio"), WAV, id="sound"),
    ],
)
def test_more_than_was_announced_is_refused(slot: MediaSlot, data: bytes) -> None:
    with pytest.raises(InvalidMediaError, match="Start announced") as caught:
        receive_media([slot], {1: bytearray(data)}, RULES)
    assert caught.value.details.field == "f.chunked.decoded_bytes"


def waveform(seconds: float, *, chunked: bool = False) -> prompt_pb2.ContentPart:
    data = encode_wav(make_audio(seconds=seconds))
    if not chunked:
        return prompt_pb2.ContentPart(audio=prompt_pb2.Media(data=data))
    reference = prompt_pb2.MediaReference(
        media_id=1, total_bytes=len(data), decoded_bytes=read_header(data, "audio").decoded_bytes
    )
    return prompt_pb2.ContentPart(audio=prompt_pb2.Media(chunked=reference))


@pytest.mark.parametrize(("pads_to_limit", "alone", "together"), [(True, 300, 600), (False, 2, 6)])
def test_audio_reserves_what_the_feature_extractor_pads_to(pads_to_limit: bool, alone: int, together: int) -> None:
    """Qwen2.5-Omni's feature extractor pads every clip to 300 s. Qwen3-Omni's pads a request's clips to the longest."""
    from omni_stage.models.shared.media_cost import BYTES_PER_AUDIO_SAMPLE, MediaCosts

    costs = MediaCosts(3136, 12_845_056, 4_800_000, 28, 640, pads_to_limit=pads_to_limit)
    takes = cost_of(costs)
    rules = replace(RULES, takes=takes, max_model_len=32_768)

    def reserve(*parts: prompt_pb2.ContentPart) -> float:
        """Returns the seconds of padded audio that a request reserves beside its copies of images and audio."""
        plan = plan_prompt(chat(*parts), Limits(), 32_768, rules)
        copies = sum(slot.held_bytes - slot.audio_input_bytes for slot in plan.media)
        return (plan.media_bytes - copies) / (16_000 * BYTES_PER_AUDIO_SAMPLE)

    assert reserve(waveform(2)) == reserve(image(), waveform(2)) == alone
    assert reserve(waveform(2), waveform(3)) == together
    assert reserve(waveform(2, chunked=True)) >= alone
    assert reserve(waveform(2, chunked=True), waveform(3)) >= together


@pytest.mark.parametrize("form", ["adts", "mp3", "ogg", "webm"])
def test_audio_of_unknown_length_reserves_no_more_than_the_model_reads(form: str) -> None:
    """A model of 30 s must not refuse a clip of 1 s whose header does not state its length, or not exactly."""
    from omni_stage.models.shared.media_cost import MediaCosts

    costs = MediaCosts(3136, 12_845_056, 30 * 16_000, 28, 640, pads_to_limit=True)
    rules = replace(RULES, takes=cost_of(costs))
    codec = dict(COMPRESSED)[form]
    data = encode_audio(form, codec, make_audio(seconds=29.9, rate_hz=48_000), 48_000)
    slot = plan_medium(prompt_pb2.Media(data=data), "f", "audio", rules)
    assert 29.9 * 16_000 <= slot.samples <= 30 * 16_000
    reference = prompt_pb2.MediaReference(media_id=1, total_bytes=len(data))
    announced = plan_medium(prompt_pb2.Media(chunked=reference), "f", "audio", rules)
    assert receive_media([announced], {1: data}, rules)[0].held_bytes <= announced.held_bytes


def test_media_of_a_request_are_bounded_together() -> None:
    limits = MediaLimits(max_decoded_bytes=1 << 20)
    rules = replace(RULES, media=limits)
    plan_prompt(chat(image(flat_png(512, 512))), Limits(), 4096, rules)
    with pytest.raises(RequestTooLargeError, match="maxDecodedBytes"):
        plan_prompt(chat(image(flat_png(512, 512)), image(flat_png(512, 512))), Limits(), 4096, rules)


def test_media_that_fill_the_prompt_are_refused_by_their_headers() -> None:
    class Costly(ScriptedComponent):
        def image_cost(self, width: int, height: int) -> MediaCost:
            return MediaCost(3000, 0)

    rules = replace(RULES, takes=Costly())
    plan_prompt(chat(image()), Limits(), 4096, rules)
    with pytest.raises(PromptTooLongError, match="media take 6000 tokens"):
        plan_prompt(chat(image(), image()), Limits(), 4096, rules)


def test_a_model_of_text_alone_refuses_media_unread() -> None:
    with pytest.raises(InvalidRequestError, match="text only"):
        plan_prompt(chat(image(b"x")), Limits(), 4096, None)


@pytest.mark.parametrize(("messages", "parts"), [(1024, 2), (2, 513), (1, 1025), (1025, 1)])
def test_parts_are_bounded_together(messages: int, parts: int) -> None:
    """1,024 messages of 1,024 parts once blocked the event loop for 1.4 s."""
    start = pb.Start()
    for _ in range(messages):
        start.chat.messages.add(role="user").parts.extend([prompt_pb2.ContentPart(text="a")] * parts)
    with pytest.raises(InvalidRequestError) as caught:
        plan_prompt(start, Limits(), 4096, RULES)
    assert caught.value.details.field == "start.chat.messages"
    assert str(MAX_CHAT_PARTS) in str(caught.value)


def test_large_chats_and_media_are_planned_beside_the_loop() -> None:
    """Only light requests are planned on the event loop; large chats and media are not light."""
    text = prompt_pb2.ContentPart(text="a")
    assert is_light(pb.Start(text="a" * 100_000))
    assert is_light(chat(*[text] * 64))
    assert not is_light(chat(*[text] * 65))
    assert not is_light(chat(image()))


async def test_the_budget_holds_what_media_are_decoded(kit: Any) -> None:
    """A stage refuses an image of 2 kB if its 16 million pixels would exceed the byte budget."""
    stage = await kit.serve(limits={"maxInflightBytes": 256 << 20})
    answer = await lab.ask(stage, [pb.GenerateRequest(start=chat(image(flat_png(4096, 4096)))), lab.END])
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE")
    assert stage.engine.requests == []
    answer = await lab.ask(stage, [pb.GenerateRequest(start=chat(image())), lab.END])
    assert answer.code is grpc.StatusCode.OK
    assert stage.server.admission.bytes == 0


async def test_audio_with_a_wrong_header_fails_its_own_request(kit: Any) -> None:
    """Audio that is longer than its header says fails only its own request: its memory was reserved by the header."""
    stage = await kit.serve()
    part = prompt_pb2.ContentPart(audio=prompt_pb2.Media(data=with_frames(flac(1), 10)))
    answer = await lab.ask(stage, [pb.GenerateRequest(start=chat(part)), lab.END])
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_MEDIA")
    assert answer.info.metadata["field"] == "start.chat.messages[0].parts[0].audio"
    assert stage.engine.requests == []
    assert (await lab.ask(stage)).code is grpc.StatusCode.OK


async def test_the_caller_learns_what_was_skipped(kit: Any) -> None:
    stage = await kit.serve()
    whole = encode_tone("mp3", "libmp3lame")
    for data, said in ((whole, False), (whole[:2000] + bytes(1000) + whole[3000:], True)):
        part = prompt_pb2.ContentPart(audio=prompt_pb2.Media(data=data))
        answer = await lab.ask(stage, [pb.GenerateRequest(start=chat(part)), lab.END], timeout_s=100)
        assert answer.code is grpc.StatusCode.OK
        (finished,) = (one.finished for one in answer.responses if one.HasField("finished"))
        assert [note.partition(":")[0] for note in finished.notes] == ["start.chat.messages[0].parts[0].audio"] * said
        assert all("is damaged, and about" in note for note in finished.notes)


def test_media_leave_room_for_text() -> None:
    admission = Admission(64, 1000)
    with admission.admit(700, media_bytes=700):
        with pytest.raises(ByteBudgetExceededError, match="for media"), admission.admit(60, media_bytes=60):
            pass
        with admission.admit(300):
            assert (admission.bytes, admission.media_bytes) == (1000, 700)
    assert (admission.bytes, admission.media_bytes) == (0, 0)
    with pytest.raises(RequestTooLargeError, match="three quarters"), admission.admit(800, media_bytes=800):
        pass
