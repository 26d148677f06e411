"""The built-in tables compared with the published models' configuration, with published measurements, and with ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.paced.ideal import Chunk, Outcome, gaps, run_ideal

from omni_proto.pipeline import load_pipeline
from omni_stage.errors import ConfigurationError
from omni_stage.models.sim.tables import BUILT_IN, Table, audio_cost, interpolate, list_built_in, read_table

ROOT = Path(__file__).parents[4]
PUBLISHED = ROOT / "tests" / "data" / "published"

# Concurrent requests -> mean seconds until a request is done, in vllm-omni's docs/design/feature/async_chunk.md (commit
# 509eee2): Qwen3-Omni on an H800 without async_chunk, 100 prompt tokens, 100 text tokens, 27.4 s of audio. Its decoder
# runs in batches of 64.
WHOLE_ON_H800 = {1: 6.505, 4: 7.668, 10: 9.516}


def run(table: Table, text_tokens: int, frames: int, starts: list[float], *, streams: bool = True) -> list[Outcome]:
    return run_ideal(table, streams=streams, prompt_tokens=100, text_tokens=text_tokens, frames=frames, starts=starts)


@pytest.mark.parametrize("name", list_built_in())
def test_every_curve_rises_and_has_a_source(name: str) -> None:
    table = read_table(BUILT_IN / name)
    said = " ".join(table.sources)
    for stage, field in (("thinker", "stepMs"), ("talker", "stepMs"), ("decoder", "frameMs")):
        assert f"{stage}.{field}" in said
    for curve in (table.thinker.step_ms, table.talker.step_ms, table.decoder.frame_ms):
        values = [curve[count] for count in sorted(curve)]
        assert values == sorted(values)
        assert values[0] > 0
    assert all(len(source) > 40 for source in table.sources.values())


@pytest.mark.parametrize("gpu", ["h100", "l40s"])
def test_the_shapes_are_those_of_the_published_configuration(gpu: str) -> None:
    table = read_table(BUILT_IN / f"qwen2.5-omni-7b-{gpu}")
    config = json.loads((PUBLISHED / "qwen25_omni_7b.config.json").read_text())
    text, talker = config["thinker_config"]["text_config"], config["talker_config"]
    bfloat16 = 2
    assert table.thinker.row_values == text["hidden_size"] == talker["embedding_size"]
    head = text["hidden_size"] // text["num_attention_heads"]
    assert table.thinker.kv_token_bytes == text["num_hidden_layers"] * 2 * text["num_key_value_heads"] * head * bfloat16
    assert table.talker.kv_token_bytes == (
        talker["num_hidden_layers"] * 2 * talker["num_key_value_heads"] * talker["head_dim"] * bfloat16
    )
    assert table.samples_per_frame == 480


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_attention_takes_the_operations_of_the_published_heads(gpu: str) -> None:
    table = read_table(BUILT_IN / f"qwen3-omni-30b-a3b-{gpu}")
    config = json.loads((PUBLISHED / "qwen3_omni_30b_a3b.config.json").read_text())
    for shape, stage in ((table.thinker, "thinker"), (table.talker, "talker")):
        text = config[f"{stage}_config"]["text_config"]
        operations = 4 * text["num_hidden_layers"] * text["num_attention_heads"] * text["head_dim"]
        assert shape.attention_pair_ns == pytest.approx(operations / 790e3, rel=0.02)


@pytest.mark.parametrize("at_once", WHOLE_ON_H800)
def test_the_qwen3_table_ends_when_the_published_run_did(at_once: int) -> None:
    table = read_table(BUILT_IN / "qwen3-omni-30b-a3b-h100")
    outcomes = run(table, 100, 343, [0.0] * at_once, streams=False)
    mean = sum(outcome.done for outcome in outcomes) / at_once
    assert mean == pytest.approx(WHOLE_ON_H800[at_once], rel=0.16)


def test_a_faster_gpu_is_faster() -> None:
    for model, frames in (("qwen2.5-omni-7b", 1000), ("qwen3-omni-30b-a3b", 250)):
        fast, slow = (run(read_table(BUILT_IN / f"{model}-{gpu}"), 150, frames, [0.0])[0] for gpu in ("h100", "l40s"))
        assert fast.first_text < slow.first_text
        assert fast.first_audio < slow.first_audio
        for outcome in (fast, slow):
            assert sum(chunk.seconds for chunk in outcome.chunks) == pytest.approx(20)


def test_requests_that_come_later_do_not_change_what_was_before() -> None:
    table = read_table(BUILT_IN / "qwen3-omni-30b-a3b-h100")
    alone = run(table, 50, 80, [0.0])[0]
    first, second = run(table, 50, 80, [0.0, 60.0])
    assert first == alone
    assert second.first_audio == pytest.approx(alone.first_audio)


def test_silences_of_a_listener_who_plays_from_the_first_chunk_on() -> None:
    assert gaps([Chunk(1.0, 0.5), Chunk(1.4, 0.5), Chunk(2.5, 0.5), Chunk(2.9, 9.0)]) == [(2.0, 0.5)]
    assert gaps([]) == []


@pytest.mark.parametrize(("count", "expected"), [(1, 2.0), (2, 2.0), (3, 3.0), (4, 4.0), (8, 8.0)])
def test_a_curve_is_linear_between_its_points_and_beyond_the_last(count: int, expected: float) -> None:
    assert interpolate({2: 2.0, 4: 4.0})(count) == expected


def test_a_decoders_step_takes_its_minimum_and_whole_audio_more() -> None:
    """A step with a window takes at least the table's minimum. A whole utterance takes longer."""
    shape = read_table(BUILT_IN / "qwen2.5-omni-7b-h100").decoder
    cost = audio_cost(shape)
    # docs/gpu-check.md: a window of 72 codes takes 34 + 17 ms with CUDA graphs; 4,096 codes in one window take 6.2 s.
    assert cost(1, 24, False) == cost(1, 72, False) == pytest.approx(51, rel=0.01)
    assert cost(1, 4096, True) == pytest.approx(6200, rel=0.03)


def test_a_wrong_table_names_its_fields(tmp_path: Path) -> None:
    data = json.loads((BUILT_IN / "qwen2.5-omni-7b-h100" / "config.json").read_text())
    data["thinker"]["stepMs"] = {"0": 1.0}
    data["talker"]["framesPerSecond"] = 0
    data["unknown"] = 1
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(ConfigurationError, match=r"thinker.stepMs.*talker.framesPerSecond.*unknown") as caught:
        read_table(tmp_path)
    assert caught.value.details.field == "model.path"


def test_a_missing_table_lists_the_built_in_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"qwen2\.5-omni-7b-h100, qwen2\.5-omni-7b-l40s"):
        read_table(tmp_path)


def test_the_sample_names_a_table_of_the_image() -> None:
    uri = load_pipeline(ROOT / "manifests" / "samples" / "sim-omni.yaml").spec.model.uri
    prefix = "file:///opt/omnipipeline/"
    assert uri.startswith(prefix)
    assert isinstance(read_table(ROOT / "stage_server" / uri.removeprefix(prefix)), Table)
