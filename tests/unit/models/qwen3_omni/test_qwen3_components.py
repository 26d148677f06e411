"""Qwen3-Omni's thinker and talker without an engine: defaults, prompts, voices, and the size of edge messages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoProcessor, WhisperFeatureExtractor

from omni_proto.stage_config import SamplingDefaults
from omni_proto.tensors import encode_rows
from omni_stage.errors import InvalidMediaError, InvalidRequestError, InvalidTensorError
from omni_stage.exchange import FinishReason, GivenReply, view_bytes
from omni_stage.models.component import (
    AudioPart,
    ChatMessage,
    EdgeInput,
    EngineStep,
    StageRequest,
    TextPart,
    UserPrompt,
)
from omni_stage.models.qwen2_5_omni.checkpoint import read_checkpoint as read_qwen25
from omni_stage.models.qwen2_5_omni.schemas import thinker2talker_schema as qwen25_schema
from omni_stage.models.qwen3_omni.checkpoint import read_checkpoint
from omni_stage.models.qwen3_omni.manifest import TALKER
from omni_stage.models.qwen3_omni.schemas import thinker2talker_schema
from omni_stage.models.qwen3_omni.talker.component import GREEDY, SEED, build_component as build_talker
from omni_stage.models.qwen3_omni.thinker.component import (
    ThinkerEmitter,
    build_component as build_thinker,
    read_text_sampling,
)
from omni_stage.models.shared.thinker import SpokenTokens
from support.engines.omni_stages import stage_config
from support.models.published import DATA, write_published, write_published_qwen3
from support.stages.hostile_edges import HOSTILE_FAMILIES


@pytest.fixture(scope="module")
def checkpoint(make_tiny_checkpoint: Callable[..., Path]) -> Path:
    return make_tiny_checkpoint(0, "small", "qwen3_omni")


@pytest.fixture(scope="module")
def thinker(checkpoint: Path) -> Any:
    return build_thinker(stage_config("thinker", checkpoint, family="qwen3_omni"))


@pytest.fixture(scope="module")
def talker(checkpoint: Path) -> Any:
    return build_talker(stage_config("talker", checkpoint, family="qwen3_omni"))


def ask(source: Any, *, spoken: bool = True, voice: str = "", **sampling: Any) -> StageRequest:
    return StageRequest("one", source, SamplingDefaults(**sampling), voice, want_tensors=spoken)


def test_the_talkers_defaults_are_the_published_files() -> None:
    """The defaults are in the Instruct release's generation_config.json, under names that vLLM does not know."""
    published = json.loads((DATA / "qwen3_omni_30b_a3b.generation_config.json").read_text())
    ours = TALKER.default_sampling
    assert ours.model_dump(exclude_none=True) == {
        "temperature": published["talker_temperature"],
        "top_k": published["talker_top_k"],
        "top_p": published["talker_top_p"],
        "repetition_penalty": published["talker_repetition_penalty"],
        "max_tokens": published["talker_max_new_tokens"],
    }


def test_the_thinker_is_greedy_and_ends_where_a_message_ends(thinker: Any, checkpoint: Path) -> None:
    assert thinker.default_sampling == SamplingDefaults(temperature=0.0, max_tokens=1024)
    end = read_checkpoint(checkpoint).text.message_end
    assert thinker.prepare(ask(UserPrompt(text="Hello"))).stop_token_ids == (end,)
    assert thinker.prepare(ask(UserPrompt(text="Hello"), ignore_eos=True)).stop_token_ids == ()


@pytest.mark.parametrize(
    ("release", "ours"),
    [("30b_a3b", SamplingDefaults(temperature=0.0, max_tokens=1024)), ("30b_a3b_thinking", SamplingDefaults())],
)
def test_a_published_file_that_has_values_for_the_thinker_decides(
    release: str, ours: SamplingDefaults, checkpoint: Path, tmp_path: Path
) -> None:
    """vLLM itself reads the values of Thinking. Instruct has values only for the talker; its thinker is greedy."""
    published = tmp_path / "published"
    shutil.copytree(checkpoint, published)
    shutil.copy(DATA / f"qwen3_omni_{release}.generation_config.json", published / "generation_config.json")
    assert build_thinker(stage_config("thinker", published, family="qwen3_omni")).default_sampling == ours


@pytest.mark.parametrize("values", [{}, {"temperature": 0.6, "do_sample": False}, {"repetition_penalty": 1.1}])
def test_the_thinker_is_greedy_where_the_file_does_not_sample(values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    assert read_text_sampling(tmp_path) == SamplingDefaults(temperature=0.0, max_tokens=1024)


def test_a_file_without_a_length_samples_as_many_tokens_as_transformers(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"top_p": 0.9}')
    assert read_text_sampling(tmp_path) == SamplingDefaults(max_tokens=1024)


def test_a_text_that_is_spoken_is_a_users_message_and_nothing_is_put_before_it(thinker: Any, checkpoint: Path) -> None:
    """A spoken text gets no system message: the model card asks for none, and transformers' talker drops it."""
    text = read_checkpoint(checkpoint).text
    spoken = thinker.prepare(ask(UserPrompt(text="Hello"))).prompt["prompt_token_ids"]
    chat = UserPrompt(messages=[ChatMessage("user", [TextPart("Hello")])])
    assert spoken == thinker.prepare(ask(chat)).prompt["prompt_token_ids"]
    assert spoken[:2] == [text.message_start, text.user]
    assert [token for token in spoken if token == text.message_start] == [text.message_start] * 2
    bare = thinker.prepare(ask(UserPrompt(text="Hello"), spoken=False)).prompt["prompt_token_ids"]
    assert text.message_start not in bare


def test_ids_without_an_assistants_turn_cannot_be_spoken(thinker: Any, checkpoint: Path) -> None:
    text = read_checkpoint(checkpoint).text
    user = [text.message_start, text.user, 5]
    with pytest.raises(InvalidRequestError, match="needs an assistant's turn") as caught:
        thinker.prepare(ask(UserPrompt(token_ids=user)))
    assert caught.value.details.field == "start.token_ids"
    assert thinker.prepare(ask(UserPrompt(token_ids=user), spoken=False)).prompt["prompt_token_ids"] == user
    turns = [*user, text.message_start, text.assistant, 5]
    assert thinker.prepare(ask(UserPrompt(token_ids=turns))).prompt["prompt_token_ids"] == turns


def test_voices_are_known_before_anything_is_written(thinker: Any, talker: Any) -> None:
    """The default voice is the first. Thinker and talker refuse an unknown voice; the error lists the known ones."""
    assert tuple(thinker.known_voices) == tuple(talker.voices) == ("Ethan", "Chelsie", "Aiden")
    with pytest.raises(InvalidRequestError, match="Ethan, Chelsie, Aiden"):
        thinker.prepare(ask(UserPrompt(text="Hello"), voice="Robert"))
    with pytest.raises(InvalidRequestError, match="Ethan, Chelsie, Aiden"):
        talker.open_feed(ask(UserPrompt(text="Hello"), voice="Robert"))


def test_the_predictor_is_greedy_where_the_talker_is_and_has_its_seed(talker: Any) -> None:
    def settings(**sampling: Any) -> dict[str, Any]:
        return dict(talker.open_feed(ask(None, **sampling))._settings)

    assert settings(temperature=0.0, seed=3) == {GREEDY: [1], SEED: [3]}
    assert settings(seed=2**63 - 1) == {GREEDY: [0], SEED: [2**63 - 1]}
    assert settings(temperature=0.1)[GREEDY] == [0]
    assert settings()[SEED] != settings()[SEED], "without a seed, each request gets a random one"


def hear(thinker: Any, seconds: float) -> int:
    """Returns how many samples of silence of this length the engine gets."""
    audio = AudioPart(np.zeros(int(seconds * 16_000), np.float32), 16_000)
    prepared = thinker.prepare(ask(UserPrompt(messages=[ChatMessage("user", [audio])])))
    ((samples, _),) = prepared.prompt["multi_modal_data"]["audio"]
    return int(samples.size)


def test_audio_is_cut_at_no_thirty_seconds(thinker: Any) -> None:
    assert hear(thinker, 40) == 40 * 16_000
    with pytest.raises(InvalidMediaError, match="longer than 300 s"):
        hear(thinker, 300.1)


@pytest.mark.parametrize("saved", [WhisperFeatureExtractor, AutoProcessor])
def test_a_checkpoint_saved_again_hears_as_long(saved: Any, checkpoint: Path, tmp_path: Path) -> None:
    """A checkpoint that transformers saves has n_samples for 30 s, or lacks preprocessor_config.json."""
    again = tmp_path / "again"
    shutil.copytree(checkpoint, again, ignore=shutil.ignore_patterns("preprocessor_config.json"))
    saved.from_pretrained(checkpoint, local_files_only=True).save_pretrained(again)
    assert hear(build_thinker(stage_config("thinker", again, family="qwen3_omni")), 40) == 40 * 16_000


def test_what_a_text_prompt_costs_on_the_edge_at_published_widths(tmp_path: Path) -> None:
    """The encoded messages of all steps take at most 5 % of the bytes that the hidden rows would take."""
    prompt, reply = 500, 300
    checkpoint = read_checkpoint(write_published_qwen3(tmp_path / "3"))
    schema = thinker2talker_schema(checkpoint)
    emitter = ThinkerEmitter(checkpoint, want_tensors=True, spoken=SpokenTokens(None, str))
    text = checkpoint.text
    ids = [text.message_start, text.user, *range(prompt - 4), text.message_start, text.assistant]
    steps = [EngineStep(token_ids=[7], prompt_token_ids=ids), *(EngineStep(token_ids=[7]) for _ in range(reply - 1))]
    sent = 0
    for step in steps:
        for name, tensor in emitter.emit(step).tensors.items():
            sent += sum(len(chunk) for chunk in encode_rows(schema.spec(name), view_bytes(tensor), last=False))
    hidden = (prompt + reply) * schema.spec("media").row_bytes
    assert hidden == (prompt + reply) * 2048 * 2
    assert 0 < sent <= 0.05 * hidden
    qwen25 = qwen25_schema(read_qwen25(write_published(tmp_path / "2.5", "7b")))
    rows = (prompt + reply) * (qwen25.spec("x").row_bytes + qwen25.spec("token_ids").row_bytes)
    assert sent <= 0.02 * rows, "at most 2 % of Qwen2.5-Omni-7B's edge, which sends rows"


def test_only_the_last_token_is_not_sent(checkpoint: Path) -> None:
    emitter = ThinkerEmitter(read_checkpoint(checkpoint), want_tensors=True, spoken=SpokenTokens(None, str))
    first = emitter.emit(EngineStep(token_ids=[7], prompt_token_ids=[1, 2, 3]))
    assert first.tensors["token_ids"].tolist() == [1, 2, 3, 7]
    assert first.tensors["prompt_tokens"].tolist() == [3]
    assert first.complete_tensors == {"prompt_tokens", "media", "media_positions"}
    assert emitter.emit(EngineStep(token_ids=[8, 9])).tensors["token_ids"].tolist() == [8, 9]
    assert "token_ids" not in emitter.emit(EngineStep()).tensors
    last = EngineStep(token_ids=[5, 6], finish_reason=FinishReason.STOP)
    assert emitter.emit(last).tensors["token_ids"].tolist() == [5]


def test_a_given_reply_is_spoken_to_its_last_token(thinker: Any) -> None:
    """A sampled reply's last token is not sent, because it may be the end token. A given reply is sent completely."""
    request = ask(UserPrompt(text="Hello", reply=GivenReply(token_ids=[7, 8, 9])))
    prepared = thinker.prepare(request)
    prompt = prepared.prompt["prompt_token_ids"][:-3]
    step = EngineStep(token_ids=[7, 8, 9], prompt_token_ids=prompt)
    published = thinker.emitter(request, prepared).emit(step).tensors["token_ids"].tolist()
    assert published == [*prompt, 7, 8, 9]
    ended = thinker.prepare(
        ask(UserPrompt(text="Hello", reply=GivenReply(token_ids=[7, 8, 9, *prepared.stop_token_ids])))
    )
    assert ended.prompt == prepared.prompt, "an end token after the reply's ids is removed"


def test_an_edge_that_makes_no_sense_is_refused_before_the_engine(talker: Any) -> None:
    """tests/engine/qwen/test_hostile_edges.py sends the same tensors to running engines, which survive them."""
    family = HOSTILE_FAMILIES["qwen3_omni"]
    good = dict(family.talker(talker))
    assert talker.prepare(ask(EdgeInput(good))).finished is None
    for name, changes in family.hostile_talker(talker).items():
        field = ""
        try:
            talker.prepare(ask(EdgeInput({**good, **changes})))
        except InvalidTensorError as error:
            field = error.details.field
        assert field.startswith("tensors."), name
