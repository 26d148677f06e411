"""Runs a step of code2wav: cuts the requests' codes into pieces of few sizes, and runs pieces of one size together.

With CUDA graphs every size that can occur has a graph or has run before the stage is ready: pieces have the numbers of
frames in FRAME_SIZES, and a batch is padded to a number of streams in STREAM_SIZES. Without graphs a piece has as many
frames as it can, and nothing is padded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from omni_stage.models.qwen3_omni.code2wav.component import MAX_BATCH
from omni_stage.models.qwen3_omni.code2wav.decoder import ChunkDecoder
from omni_stage.models.qwen3_omni.code2wav.operators import Operators, PlainOperators
from omni_stage.models.qwen3_omni.code2wav.streams import BLANK, MAXIMUM_STREAMS, SCRATCH, StreamPool, Turn
from omni_stage.models.shared.graphs import TOLERANCE, Capture, GraphedFunction, graph_sizes, next_size
from omni_stage.vllm_adapter.worker.host_memory import to_device

logger = logging.getLogger(__name__)

PIECE_FRAMES = 64
"""Maximum number of frames of one request in one forward. A longer request is computed in pieces."""
STEP_FRAMES = 256
"""Maximum number of frames of all requests in one forward. In the published model a frame takes 14 MB at the widest
layer (measured on an H200), so 64 requests with PIECE_FRAMES frames each would take 57 GB in one forward."""
FRAME_SIZES = (1, 2, 4, 8, 16, 32, PIECE_FRAMES)
STREAM_SIZES = graph_sizes(MAX_BATCH)
GRAPHED_FRAMES = 8
"""A piece of more frames takes much longer than its launches, so it needs no graph."""


@dataclass(slots=True)
class Chunk:
    """One request of a step, and its audio so far."""

    codes: torch.Tensor
    """int64 [frames, groups] on the CPU."""
    stream: str | None
    first_frame: int
    last: bool
    done: int = 0
    audio: list[torch.Tensor] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Number of the stream's frames so far."""
        return self.first_frame + self.done

    @property
    def left(self) -> int:
        """Number of frames to compute."""
        return self.codes.shape[0] - self.done


def piece_frames(left: int, *, few_sizes: bool) -> int:
    """Returns the number of frames of the next piece of a request with `left` frames."""
    return max(size for size in FRAME_SIZES if size <= left) if few_sizes else min(PIECE_FRAMES, left)


def most_streams(frames: int) -> int:
    """Returns how many pieces of `frames` frames fit one forward."""
    return min(MAX_BATCH, max(1, STEP_FRAMES // frames))


def all_sizes() -> list[tuple[int, int]]:
    """Returns every (streams, frames) of a forward if few_sizes, the largest first."""
    sizes = [(streams, frames) for frames in FRAME_SIZES for streams in STREAM_SIZES if streams <= most_streams(frames)]
    return sorted(sizes, key=lambda size: size[0] * size[1], reverse=True)


class StepRunner:
    """Runs steps of a loaded Qwen3OmniMoeCode2Wav, and keeps the states of its streams. For use by one thread."""

    def __init__(self, decoder: ChunkDecoder, groups: int, capture: Capture | None = None) -> None:
        """`groups`: codes in a frame; `capture`: None if there are no graphs."""
        self._decoder = decoder
        self._groups = groups
        self._few_sizes = capture is not None
        self._run = GraphedFunction(self._forward, capture)
        self.operators: type[Operators] = PlainOperators
        """Of the sizes that have graphs."""
        self.pool = StreamPool(decoder.layout, decoder.device)
        if self._few_sizes:
            # Graphs read and write the table where it is now. A step needs a second row for each of its streams.
            self.pool.reserve(MAXIMUM_STREAMS + MAX_BATCH)

    def warm_up(self) -> None:
        """Capture the graphs and run the other sizes. Does nothing without graphs."""
        if not self._few_sizes:
            return
        begin, graphs = time.monotonic(), 0
        if self._decoder.device.type == "cuda":
            self.operators = self._choose_operators()
        for streams, frames in all_sizes():
            plan = self._to_plan([], [], streams, frames)
            if frames <= GRAPHED_FRAMES:
                graphs += self._run.warm_up(plan)
            else:
                self._run(plan)
        logger.info("captured %d CUDA graphs of code2wav in %.1f s", graphs, time.monotonic() - begin)

    def _choose_operators(self) -> type[Operators]:
        """Returns the fused operators, if they compute what PyTorch's do at every size that gets a graph."""
        try:
            from omni_stage.models.qwen3_omni.code2wav.kernels import FusedOperators

            for streams, frames in all_sizes():
                if frames > GRAPHED_FRAMES:
                    continue
                difference = self.compare(FusedOperators, streams, frames)
                # Written this way, the comparison also rejects NaN.
                if not difference <= TOLERANCE:
                    logger.error("code2wav's kernels differ from PyTorch by %s: it serves without them", difference)
                    return PlainOperators
        except torch.AcceleratorError:
            # The device failed, not a kernel: the stage cannot serve.
            raise
        except Exception:  # a kernel's compiler raises errors of many kinds, and none may end the stage
            logger.exception("code2wav's kernels do not run: it serves without them")
            return PlainOperators
        return FusedOperators

    @torch.inference_mode()
    def compare(self, operators: type[Operators], streams: int, frames: int) -> float:
        """Returns by how much audio and states of a step differ from those of PyTorch's operators, as a share of the
        largest value, or of one. Of random codes; every second stream begins in this step."""
        generator = torch.Generator().manual_seed(0)
        shape = (2, streams, self._groups, frames)
        first, codes = torch.randint(self._decoder.codebook_size, shape, generator=generator).to(self._decoder.device)
        begins = torch.arange(streams, device=codes.device) % 2
        blank = self._decoder.layout.zeros(streams, codes.device)
        _, states = self._decoder.advance(first, torch.zeros_like(begins), blank)
        states[begins > 0] = 0
        positions = frames * (1 - begins)
        expected = self._decoder.advance(codes, positions, states)
        found = self._decoder.advance(codes, positions, states, operators)
        differences = [
            (one - other).abs().max() / one.abs().max().clamp(min=1) for one, other in zip(expected, found, strict=True)
        ]
        return float(torch.stack(differences).max())

    def run(self, chunks: Sequence[Chunk]) -> list[torch.Tensor]:
        """Returns the audio of each chunk, float32 [samples], on the device, and advances the streams.

        If this raises, every stream is as it was.
        """
        turns = self.pool.begin([chunk.stream for chunk in chunks])
        try:
            rows = list(turns)
            while waiting := [row for row, chunk in enumerate(chunks) if chunk.left]:
                frames = piece_frames(chunks[waiting[0]].left, few_sizes=self._few_sizes)
                same = [row for row in waiting if piece_frames(chunks[row].left, few_sizes=self._few_sizes) == frames]
                same = same[: most_streams(frames)]
                self._run_piece([chunks[row] for row in same], [rows[row] for row in same], frames)
                for row in same:
                    # The next piece continues where this one ended.
                    rows[row] = Turn(turns[row].stream, turns[row].target, turns[row].target)
            audio = [chunk.audio[0] if len(chunk.audio) == 1 else torch.cat(chunk.audio) for chunk in chunks]
        except BaseException:
            self.pool.give_back(turns)
            raise
        self.pool.keep(turns, [chunk.position for chunk in chunks])
        for chunk in chunks:
            if chunk.last and chunk.stream is not None:
                self.pool.drop(chunk.stream)
        return audio

    def _run_piece(self, chunks: Sequence[Chunk], turns: Sequence[Turn], frames: int) -> None:
        streams = next_size(len(chunks), STREAM_SIZES) if self._few_sizes else len(chunks)
        audio = self._run(self._to_plan(chunks, turns, streams, frames))
        for chunk, samples in zip(chunks, audio, strict=False):
            chunk.audio.append(samples if chunk.position else samples[self._decoder.lookahead :])
            chunk.done += frames

    def _to_plan(self, chunks: Sequence[Chunk], turns: Sequence[Turn], streams: int, frames: int) -> torch.Tensor:
        """Returns the plan of a forward, int64 [streams, 3 + groups * frames], on the device: one copy.

        A row has the rows to read and to write, the position, and the codes. Rows without a chunk change no stream.
        """
        plan = torch.zeros(streams, 3 + self._groups * frames, dtype=torch.int64)
        plan[:, :2] = torch.tensor([BLANK, SCRATCH])
        for row, chunk, turn in zip(plan, chunks, turns, strict=False):
            row[:3] = torch.tensor([turn.source, turn.target, chunk.position])
            row[3:].view(self._groups, frames).copy_(chunk.codes[chunk.done : chunk.done + frames].T)
        return to_device(plan, self._decoder.device)

    def _forward(self, plan: torch.Tensor) -> torch.Tensor:
        """Returns the audio [streams, samples] of a plan, and writes the new states."""
        source, target, positions = plan[:, 0], plan[:, 1], plan[:, 2]
        codes = plan[:, 3:].view(len(plan), self._groups, -1)
        operators = self.operators if codes.shape[-1] <= GRAPHED_FRAMES else PlainOperators
        audio, behind = self._decoder.advance(codes, positions, self.pool.states.index_select(0, source), operators)
        self.pool.states.index_copy_(0, target, behind)
        return audio
