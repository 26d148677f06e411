"""Serves Qwen3-Omni's published sizes on one GPU, and sends 1, 8, 32 and 64 requests at once, twice each.

    python -m benchmarks.gpu.offline.load checkpoint FOLDER --layers 26        writes the checkpoint (7.7 GB)
    python -m benchmarks.gpu.offline.load serve FOLDER --out RESULTS [--after FILE]

The thinker makes its weights when it is loaded. With 26 of its 48 layers it takes 33 GB and starts in half the time;
the media layer, 24, is among them. Results are in levels.json in the folder of results, after every level. `--after`
waits for a file before it sends requests: other checks write it when they have left the GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.checks import Context
from benchmarks.gpu.stages.engines import load_sample, serve, with_stages
from benchmarks.gpu.stages.serving import measure_level
from benchmarks.gpu.stages.shaped import write_shaped_checkpoint

LEVELS = (1, 8, 32, 64)
GIB_PER_LAYER = 1.2
"""Weights of a layer of the thinker."""
_REST_GIB = {"thinker": 20.0, "talker": 17.0, "code2wav": 10.0}
_KV_GIB = {"thinker": 8, "talker": 6}
"""KV cache for 64 short requests: less than in the sample, so that other checks fit on the GPU at the same time."""
_WAIT_S = 60.0


def write_checkpoint(directory: Path, layers: int) -> None:
    """Write the checkpoint, with a thinker of so many layers."""
    write_shaped_checkpoint(directory, "30b-a3b")
    file = directory / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["thinker_config"]["text_config"]["num_hidden_layers"] = layers
    file.write_text(json.dumps(config), encoding="utf-8")


def serve_levels(checkpoint: Path, out: Path, after: Path | None) -> bool:
    """Serve the checkpoint and run every level, cold and then warm. Returns whether all requests were answered."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory / (1 << 30)
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    layers = config["thinker_config"]["text_config"]["num_hidden_layers"]
    context = Context(device="cuda", gpus=1, out=out, model=checkpoint, family="qwen3_omni")

    def sized(stage: Any, _: int) -> dict[str, Any]:
        gib = _REST_GIB[stage.name] + (GIB_PER_LAYER * layers if stage.name == "thinker" else 0)
        changes: dict[str, Any] = {"gpu_memory_utilization": round(gib / total, 3)}
        if stage.name in _KV_GIB:
            changes["kv_cache_memory_mib"] = _KV_GIB[stage.name] << 10
        return {"engine_args": stage.engine_args.model_copy(update=changes)}

    pipeline, checkpoint = load_sample(context, stream=True)
    rows: list[dict[str, Any]] = []
    with serve(context, with_stages(pipeline, sized), checkpoint, "speed", drawn=True) as (local, seconds):
        print(f"ready: {seconds.by_stage}", flush=True)
        deadline = time.monotonic() + _WAIT_S
        while after is not None and not after.exists() and time.monotonic() < deadline:
            time.sleep(0.5)
        for way in ("cold", "warm"):
            for count in LEVELS:
                finding = measure_level(context, local, f"{count}_at_once.{way}", count)
                print(finding.name, finding.value, flush=True)
                rows.append({"level": finding.name, "layers": layers, "ok": finding.ok, **finding.data})
                (out / "levels.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return all(row["ok"] for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the checkpoint, or serve it. Returns 1 if a request was not answered, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("checkpoint", "serve"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=48, help="of the thinker")
    parser.add_argument("--out", type=Path, default=Path("gpu-check"))
    parser.add_argument("--after", type=Path, help="file to wait for before the first request")
    options = parser.parse_args(arguments)
    if options.what == "checkpoint":
        write_checkpoint(options.folder, options.layers)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    return int(not serve_levels(options.folder, options.out, options.after))


if __name__ == "__main__":
    sys.exit(main())
