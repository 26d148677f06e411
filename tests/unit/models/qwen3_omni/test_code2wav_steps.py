"""Steps of code2wav: which sizes they run, what a failed one leaves, and how much they launch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu.memory.peak import PeakMemory
from benchmarks.gpu.memory.sizes import CODEC_BYTES_PER_FRAME, CODEC_STATE_BYTES, CODEC_STATES, CODEC_STEP_FRAMES
from transformers import Qwen3OmniMoeForConditionalGeneration
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni_stage.errors import ModelExecutionError
from omni_stage.models.qwen3_omni.code2wav.component import MAX_BATCH, MAX_CHUNK_FRAMES
from omni_stage.models.qwen3_omni.code2wav.decoder import ChunkDecoder
from omni_stage.models.qwen3_omni.code2wav.steps import (
    STEP_FRAMES,
    STREAM_SIZES,
    Chunk,
    StepRunner,
    all_sizes,
    most_streams,
    piece_frames,
)
from omni_stage.models.qwen3_omni.code2wav.streams import MAXIMUM_STREAMS, StateLayout, StreamPool
from omni_stage.models.shared.graphs import Captured, TensorFunction, next_size

TOLERANCE = 1e-5
PUBLISHED = Path(__file__).parents[3] / "data" / "published" / "qwen3_omni_30b_a3b.config.json"


def capture_on_cpu(function: TensorFunction, inputs: tuple[torch.Tensor, ...]) -> Captured:
    """Stands in for a CUDA graph: a replay reads and writes the same memory every time."""
    output = function(*inputs)
    return Captured(inputs, output, lambda: output.copy_(function(*inputs)))


@pytest.fixture(scope="module")
def code2wav(make_tiny_checkpoint: Callable[..., Path]) -> Any:
    checkpoint = make_tiny_checkpoint(0, "small", "qwen3_omni")
    return Qwen3OmniMoeForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).code2wav.eval()


def draw(code2wav: Any, frames: int, seed: int) -> torch.Tensor:
    """Returns random codes: int64 [frames, groups]."""
    shape = (frames, code2wav.config.num_quantizers)
    return torch.randint(code2wav.config.codebook_size, shape, generator=torch.Generator().manual_seed(seed))


def make_runner(code2wav: Any, *, graphs: bool) -> StepRunner:
    return StepRunner(ChunkDecoder(code2wav), code2wav.config.num_quantizers, capture_on_cpu if graphs else None)


@pytest.mark.parametrize("graphs", [False, True])
@torch.inference_mode()
def test_streams_that_begin_whenever_they_like(code2wav: Any, *, graphs: bool) -> None:
    """Streams of chunks of 1 to 13 frames join and leave the batch; each one's audio is that of one forward."""
    runner = make_runner(code2wav, graphs=graphs)
    for streams, frames in ((1, 1), (2, 2), (4, 1), (4, 4)) if graphs else ():
        assert runner._run.warm_up(runner._to_plan([], [], streams, frames))
    lengths = (31, 7, 40, 1, 22)
    codes = {f"stream-{index}": draw(code2wav, length, index) for index, length in enumerate(lengths)}
    audio: dict[str, list[torch.Tensor]] = {name: [] for name in codes}
    at = dict.fromkeys(codes, 0)
    sizes = itertools.cycle((1, 3, 1, 4, 2, 13, 8))
    for step in itertools.count():
        joined = [name for index, name in enumerate(codes) if step >= 2 * index and at[name] < len(codes[name])]
        if step > 10 and not joined:
            break
        chunks = []
        for name in joined:
            taken = codes[name][at[name] : at[name] + next(sizes)]
            chunks.append(Chunk(taken, name, at[name], last=at[name] + len(taken) == len(codes[name])))
            at[name] += len(taken)
        for name, samples in zip(joined, runner.run(chunks), strict=True):
            audio[name].append(samples.clone())
    assert len(runner.pool) == 0
    for name, own in codes.items():
        torch.testing.assert_close(torch.cat(audio[name]), code2wav(own.T[None])[0, 0], atol=TOLERANCE, rtol=0)
    assert not runner.pool.states[0].any(), "the blank row stays blank"


@torch.inference_mode()
def test_a_long_request_beside_a_stream(code2wav: Any) -> None:
    """A request of several pieces leaves no state."""
    runner = make_runner(code2wav, graphs=False)
    long, short = draw(code2wav, 150, 0), draw(code2wav, 3, 1)
    results = runner.run([Chunk(long, None, 0, last=True), Chunk(short, "stream", 0, last=False)])
    for own, samples in zip((long, short), results, strict=True):
        torch.testing.assert_close(samples, code2wav(own.T[None])[0, 0], atol=TOLERANCE, rtol=0)
    assert len(runner.pool) == 1


@torch.inference_mode()
def test_a_step_that_fails_can_run_again(code2wav: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second piece fails after the first one has written its states."""
    runner = make_runner(code2wav, graphs=False)
    own = draw(code2wav, 110, 0)
    parts = [runner.run([Chunk(own[:10], "stream", 0, last=False)])[0]]
    forward, calls = runner._run._function, itertools.count()

    def fail_second(plan: torch.Tensor) -> torch.Tensor:
        if next(calls) == 1:
            raise torch.OutOfMemoryError
        return forward(plan)

    with monkeypatch.context() as patch:
        patch.setattr(runner._run, "_function", fail_second)
        with pytest.raises(torch.OutOfMemoryError):
            runner.run([Chunk(own[10:], "stream", 10, last=True)])
    runner.pool.check("stream", 10)
    parts += runner.run([Chunk(own[10:], "stream", 10, last=True)])
    torch.testing.assert_close(torch.cat(parts), code2wav(own.T[None])[0, 0], atol=TOLERANCE, rtol=0)
    assert runner.pool.rows == 8


def test_every_size_that_can_occur_is_warm() -> None:
    """Of any number of requests with any numbers of frames, no forward has a size that `warm_up` did not run."""
    warm, met = set(all_sizes()), set()
    for left, waiting in itertools.product(range(1, 4 * MAX_CHUNK_FRAMES), range(1, MAX_BATCH + 1)):
        frames = piece_frames(left, few_sizes=True)
        met.add((next_size(min(waiting, most_streams(frames)), STREAM_SIZES), frames))
    assert met <= warm
    assert {(streams, frames) for streams in STREAM_SIZES for frames in (1, 2, 4)} <= warm


def test_rows_are_lent_and_given_back() -> None:
    """Each stream has a row of the pool until it is dropped, and another one during a step."""
    pool = StreamPool(StateLayout((1, 2, 1, 3, 4), ((2, 2),)), torch.device("cpu"), maximum_streams=9)
    names: list[str | None] = [f"sound-{index}" for index in range(9)]
    turns = pool.begin(names)
    assert {turn.source for turn in turns} == {0}
    assert len({turn.target for turn in turns}) == 9
    pool.keep(turns, [4] * 9)
    again = pool.begin(names)
    assert [turn.source for turn in again] == [turn.target for turn in turns]
    assert not {turn.target for turn in again} & {turn.source for turn in again}
    pool.give_back(again)
    assert len(pool) == 9
    pool.check("sound-3", 4)
    with pytest.raises(ModelExecutionError, match="begins at frame 5, but its stream has 4"):
        pool.check("sound-3", 5)
    with pytest.raises(ModelExecutionError, match="9 audio streams are open"):
        pool.check("one more", 0)
    with pytest.raises(ModelExecutionError, match="9 audio streams are open"):
        pool.begin(["sound-3", "one more"])
    pool.drop("sound-3")
    pool.drop("sound-3")
    with pytest.raises(ModelExecutionError, match="its stream has 0"):
        pool.check("sound-3", 4)
    rows = pool.rows
    for turn in range(100):
        pool.keep(pool.begin([f"later-{turn}", None]), [1, 1])
        pool.drop(f"later-{turn}")
    assert pool.rows == rows


def test_the_memory_of_the_largest_step() -> None:
    """Steps of STEP_FRAMES frames and the states of all streams take what docs/gpu-sizing.md plans for them.

    On meta tensors, which have sizes but no data."""
    config = Qwen3OmniMoeCode2WavConfig(**json.loads(PUBLISHED.read_text())["code2wav_config"])
    with torch.device("meta"):
        model = Qwen3OmniMoeCode2Wav._from_config(config).eval()
    runner = StepRunner(ChunkDecoder(model), config.num_quantizers)
    assert (CODEC_STATES, CODEC_STEP_FRAMES) == (2 + MAXIMUM_STREAMS + MAX_BATCH, STEP_FRAMES)
    assert runner.pool.states.nbytes == 2 * CODEC_STATE_BYTES
    for streams, frames in ((4, 64), (32, 8), (64, 4)):
        plan = torch.zeros(streams, 3 + config.num_quantizers * frames, dtype=torch.int64, device="meta")
        with torch.no_grad(), PeakMemory() as memory:
            runner._forward(plan)
        states = 2 * streams * CODEC_STATE_BYTES
        assert states < memory.peak <= STEP_FRAMES * CODEC_BYTES_PER_FRAME + states
