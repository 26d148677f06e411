"""Checks code2wav without vLLM: its chunks against one forward of transformers' model, its memory and its speed.

On a GPU, the model has the published shapes and random weights. On a CPU, it is loaded from the tiny checkpoint. It
computes in float32. TF32 is off where samples are compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.checks import Context, Finding, at_most
from benchmarks.gpu.qwen3_omni.codes import AUDIO_CPU, AUDIO_GPU, FAMILY

PUBLISHED = Path(__file__).parents[3] / "tests" / "data" / "published" / "qwen3_omni_30b_a3b.config.json"
FRAMES, CPU_FRAMES = 500, 24
"""Frames that are compared on a GPU (40 seconds of audio), and on a CPU."""
SIZES = (1, 4, 25)
AT_ONCE = (1, 8, 32, 64)
SPEED_SIZES = (1, 4, 8, 64)
SAMPLES, RATE_HZ = 1920, 24_000
START_S = 120.0
"""Seconds that the capture of all graphs may take."""
_STEPS = 12


@cache
def load(device: str, directory: Path) -> Any:
    """Returns transformers' code2wav in float32, with weights that carry a signal through every layer."""
    from transformers import Qwen3OmniMoeForConditionalGeneration
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

    from omni_stage.models.qwen3_omni.tiny.weights import fill_weights, make_audible

    if device == "cpu":
        from benchmarks.gpu.stages.engines import tiny_checkpoint

        checkpoint = tiny_checkpoint(directory, FAMILY)
        return Qwen3OmniMoeForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).code2wav.eval()
    values = json.loads(PUBLISHED.read_text(encoding="utf-8"))["code2wav_config"]
    model = Qwen3OmniMoeCode2Wav._from_config(Qwen3OmniMoeCode2WavConfig(**values)).float().eval()
    # The ModuleDict gives the model the name that it has in a whole checkpoint, because the weights depend on names.
    fill_weights(torch.nn.ModuleDict({"code2wav": model}), 0)
    make_audible(model, 0)
    return model.to(device)


def draw(model: Any, frames: int, streams: int = 1, seed: int = 0) -> torch.Tensor:
    """Returns random codes, int64 [streams, groups, frames], on the model's device."""
    generator = torch.Generator().manual_seed(seed)
    shape = (streams, model.config.num_quantizers, frames)
    return torch.randint(model.config.codebook_size, shape, generator=generator).to(model.code_embedding.weight.device)


def chunks(context: Context) -> Iterator[Finding]:
    """Compares chunks of 1, 4 and 25 frames with one forward, on a GPU also with the kernels of the CUDA graphs.

    Silent audio fails, because it would prove nothing.
    """
    from benchmarks.gpu.token2wav.wave_model import full_precision
    from omni_stage.models.qwen3_omni.code2wav.decoder import ChunkDecoder
    from omni_stage.models.qwen3_omni.code2wav.operators import PlainOperators

    model = load(context.device, context.out.parent)
    frames = FRAMES if context.on_gpu else CPU_FRAMES
    codes = draw(model, frames)
    with torch.inference_mode(), full_precision():
        expected = model(codes)[:, 0]
        peak = float(expected.abs().max())
        yield Finding(f"peak {peak:.3f}", "peak>0.01", ok=peak > 0.01, name="audible")
        kinds: dict[str, Any] = {"": PlainOperators}
        if context.on_gpu:
            from omni_stage.models.qwen3_omni.code2wav.kernels import FusedOperators

            kinds["_fused"] = FusedOperators
        for size, kind in product(SIZES, kinds):
            decoder = ChunkDecoder(model)
            states = decoder.layout.zeros(1, decoder.device)
            audio: list[torch.Tensor] = []
            for begin in range(0, frames, size):
                place = torch.tensor([begin], device=decoder.device)
                samples, states = decoder.advance(codes[:, :, begin : begin + size], place, states, kinds[kind])
                audio.append(samples if begin else samples[:, decoder.lookahead :])
            ours = torch.cat(audio, dim=1)
            if ours.shape != expected.shape:
                yield Finding(
                    f"{ours.shape[1]} samples", f"{expected.shape[1]} samples", ok=False, name=f"of_{size}{kind}"
                )
                continue
            limit = AUDIO_GPU if context.on_gpu else AUDIO_CPU
            yield at_most(float((ours - expected).abs().max()), limit, name=f"of_{size}{kind}")


def together(context: Context) -> Finding:
    """Compares one forward of several streams, each at a different frame, with a forward of each stream alone."""
    from benchmarks.gpu.token2wav.wave_model import full_precision
    from omni_stage.models.qwen3_omni.code2wav.decoder import ChunkDecoder

    model = load(context.device, context.out.parent)
    decoder, lengths = ChunkDecoder(model), (3, 40, 17)
    alone: list[torch.Tensor] = []
    with torch.inference_mode(), full_precision():
        states = decoder.layout.zeros(len(lengths), decoder.device)
        codes = [draw(model, length + 2, seed=length) for length in lengths]
        for row, (length, own) in enumerate(zip(lengths, codes, strict=True)):
            begin, place = torch.tensor([[0], [length]], device=decoder.device)
            _, behind = decoder.advance(own[..., :length], begin, states[row : row + 1])
            states[row] = behind[0]
            alone.append(decoder.advance(own[..., length:], place, behind)[0])
        places = torch.tensor(lengths, device=decoder.device)
        joined, _ = decoder.advance(torch.cat([own[..., -2:] for own in codes]), places, states)
    limit = AUDIO_GPU if context.on_gpu else AUDIO_CPU
    return at_most(float((joined - torch.cat(alone)).abs().max()), limit)


def speed(context: Context) -> Iterator[Finding]:
    """Measures steps of 1, 4, 8 and 64 frames with 1, 8, 32 and 64 streams as the stage runs them, with CUDA graphs.

    Reports the seconds of the warm-up. Of each size it reports the first step, the mean of later ones, and the
    real-time factor.
    """
    from omni_stage.models.qwen3_omni.code2wav.decoder import ChunkDecoder
    from omni_stage.models.qwen3_omni.code2wav.operators import PlainOperators
    from omni_stage.models.qwen3_omni.code2wav.steps import StepRunner
    from omni_stage.models.shared.graphs import CudaCapture

    model = load("cuda", context.out.parent)
    with torch.inference_mode():
        held = torch.cuda.memory_allocated()
        runner = StepRunner(ChunkDecoder(model), model.config.num_quantizers, CudaCapture(torch.device("cuda")))
        began = time.perf_counter()
        runner.warm_up()
        torch.cuda.synchronize()
        data: dict[str, float] = {"held_bytes": torch.cuda.memory_allocated() - held}
        yield at_most(time.perf_counter() - began, START_S, name="warm_up", unit="s", data=data)
        used = runner.operators.__name__
        yield Finding(used, "FusedOperators", ok=runner.operators is not PlainOperators, name="kernels")
        for streams in AT_ONCE:
            for size in SPEED_SIZES:
                first, later = _time_steps(runner, model, streams, size)
                factor = later / (size * SAMPLES / RATE_HZ)
                data = {"first_ms": 1000 * first, "ms": 1000 * later, "audio_seconds_per_second": streams / factor}
                context.say(f"{streams} streams of {size}: {data}")
                yield at_most(factor, 1.0, name=f"{streams}_streams_of_{size}", unit="RTF", data=data)


def _time_steps(runner: Any, model: Any, streams: int, size: int) -> tuple[float, float]:
    """Returns the seconds of the first step of new streams, and the mean of later steps, audio on the host included."""
    from omni_stage.models.qwen3_omni.code2wav.steps import Chunk

    codes = draw(model, size, streams).cpu().transpose(1, 2).contiguous()
    times = []
    for turn in range(_STEPS):
        last = turn == _STEPS - 1
        names = [f"{streams}.{size}.{row}" for row in range(streams)]
        chunks = [Chunk(codes[row], name, turn * size, last) for row, name in enumerate(names)]
        began = time.perf_counter()
        audio = runner.run(chunks)
        torch.cat(audio).cpu()
        times.append(time.perf_counter() - began)
    return times[0], sum(times[1:]) / (_STEPS - 1)
