"""Measures steps of processes that share the GPU: alone and together, by time slices and under MPS.

Three processes stand for the three stages, with the published shapes and random weights: a frame of 8 requests in the
code predictor, a frame of 8 streams in code2wav, and one reading of 8 GB of weights as a step of a thinker does. Each
step is a CUDA graph. MPS runs as a daemon of this user and changes no setting of the GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.checks import Context, Finding

PREDICTOR, CODE2WAV, WEIGHTS = "predictor", "code2wav", "weights"
GROUPS = (
    (PREDICTOR,),
    (CODE2WAV,),
    (WEIGHTS,),
    (PREDICTOR, CODE2WAV),
    (PREDICTOR, WEIGHTS),
    (PREDICTOR, CODE2WAV, WEIGHTS),
)
STREAMS, SECONDS = 8, 2.0
_MPS = "nvidia-cuda-mps-control"


def ceilings(_: Context) -> Iterator[Finding]:
    """Reports what the GPU can do at most: a copy of 4 GB within its memory, and a product of bfloat16 matrices."""
    source = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / _median_seconds(partial(target.copy_, source))
    yield Finding(f"{copied / 1e12:.2f} TB/s", name="memory", data={"bytes_per_second": copied})
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    done = 2 * 8192**3 / _median_seconds(lambda: matrix @ matrix)
    yield Finding(f"{done / 1e12:.0f} TFLOP/s", name="bfloat16", data={"operations_per_second": done})


def steps(_: Context) -> Iterator[Finding]:
    """Reports milliseconds of each process's step in each group, by time slices, and under MPS if it is there."""
    yield from _measure("slices", {})
    if shutil.which(_MPS) is None:
        yield Finding("", name="mps", skipped=f"{_MPS} is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([_MPS, "-d"], env=os.environ | places, check=True)
        try:
            yield from _measure("mps", places)
        finally:
            subprocess.run([_MPS], input="quit\n", text=True, env=os.environ | places, check=False)


def _measure(label: str, variables: Mapping[str, str]) -> Iterator[Finding]:
    command = [sys.executable, "-m", __spec__.name]
    children = {
        what: subprocess.Popen(
            [*command, what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | dict(variables),
        )
        for what in (PREDICTOR, CODE2WAV, WEIGHTS)
    }
    try:
        for child in children.values():
            _read_line(child)
        for group in GROUPS:
            for what in group:
                print("go", file=children[what].stdin, flush=True)
            found = {what: json.loads(_read_line(children[what])) for what in group}
            words = ", ".join(f"{what} {data['ms']:.2f} ms" for what, data in found.items())
            yield Finding(words, name=f"{label}.{'_'.join(group)}", data=found)
    finally:
        for child in children.values():
            child.kill()
            child.wait()


def _read_line(child: subprocess.Popen[str]) -> str:
    line = child.stdout.readline() if child.stdout else ""
    if not line:
        raise RuntimeError(f"the process {child.args!r} ended")
    return line


def _median_seconds(run: Callable[[], object], rounds: int = 10) -> float:
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def _to_step(what: str) -> Callable[[], object]:
    """Returns the step of a process, captured as a CUDA graph. Each runs under inference mode."""
    from omni_stage.models.shared.graphs import CudaCapture

    device = torch.device("cuda")
    inputs: Sequence[torch.Tensor]
    function: Any
    if what == PREDICTOR:
        from benchmarks.gpu.qwen3_omni.predictor import load
        from omni_stage.models.qwen3_omni.talker.predictor import CodePredictor

        predictor = CodePredictor(load("cuda"))
        hidden = torch.randn(2, STREAMS, predictor.hidden_size, device=device, dtype=torch.bfloat16)
        numbers = torch.arange(STREAMS, device=device)
        function, inputs = predictor.predict, (hidden[0], hidden[1], numbers < 0, numbers, numbers)
    elif what == CODE2WAV:
        from benchmarks.gpu.qwen3_omni.audio import draw, load as load_code2wav
        from omni_stage.models.qwen3_omni.code2wav.decoder import ChunkDecoder

        model = load_code2wav("cuda", Path())
        decoder = ChunkDecoder(model)
        states = decoder.layout.zeros(STREAMS, device)
        places = torch.full((STREAMS,), 72, device=device)
        function, inputs = lambda *given: decoder.advance(*given)[0], (draw(model, 1, STREAMS), places, states)
    else:
        weights = [torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(64)]
        rows = torch.randn(STREAMS, 8192, device=device, dtype=torch.bfloat16)
        function, inputs = lambda given: torch.stack([given @ weight for weight in weights]), (rows,)
    return CudaCapture(device)(function, tuple(inputs)).replay


def main(what: str) -> None:
    """Run as a child: print a line when ready, then one with the milliseconds of a step for each line of the input."""
    with torch.inference_mode():
        step = _to_step(what)
        print("ready", flush=True)
        while sys.stdin.readline():
            times = []
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                began = time.perf_counter()
                step()
                torch.cuda.synchronize()
                times.append(1000 * (time.perf_counter() - began))
            data = {"ms": statistics.median(times), "p90_ms": sorted(times)[len(times) * 9 // 10], "steps": len(times)}
            print(json.dumps(data), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
