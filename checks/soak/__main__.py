"""`make soak`: mixed load on a tiny pipeline of real stages, while networks, engines and stages fail at random.

    PYTHONPATH=tests:. python -m checks.soak --minutes 30 --json benchmarks/results/soak.json
    PYTHONPATH=tests:. python -m checks.soak --minutes 180 --no-kills    # for leaks: no process ends before the soak
    PYTHONPATH=tests:. python -m checks.soak --hostile --minutes 5       # hostile clients, no faults (hostile.py)

It fails if
- a call ends more than 2 s after its deadline, ends with a code that no fault explains, or gets a different answer than
  before the first fault;
- a stage whose engine was killed, or that got SIGTERM, ends with the wrong exit code;
- after the last fault, the pipeline does not serve, or still holds requests or bytes;
- a process (stage server, engine, helper) grew by more than memory.py allows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import random
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from checks.soak.faults import FaultHand
from checks.soak.hostile import run_hostile
from checks.soak.load import Load
from checks.soak.memory import EVERY_S, MemoryLog
from checks.soak.pipeline import SoakPipeline
from tools.json_text import format_json

from omni_proto.client import AsyncOmniClient

QUIET_S = 10.0
RECOVERY_S = 30.0


async def soak(minutes: float, workers: int, seed: int, folder: Path, *, kills: bool = True) -> dict[str, object]:
    """Runs the soak. Returns the report, whose `problems` is empty if all went well."""
    rng = random.Random(seed)
    async with AsyncExitStack() as stack:
        pipeline = SoakPipeline(folder)
        stack.callback(pipeline.close)
        await asyncio.to_thread(pipeline.start)
        client = await stack.enter_async_context(AsyncOmniClient(pipeline.proxies["thinker"].target))
        load = Load(client, rng)
        await load.learn()
        hand = FaultHand(pipeline, random.Random(seed + 1), kills=kills)
        memory = MemoryLog()
        began = time.monotonic()
        stop = asyncio.Event()
        tasks = [asyncio.create_task(load.work(stop)) for _ in range(workers)]
        faults = asyncio.create_task(hand.work(stop))
        watch = asyncio.create_task(watch_memory(pipeline, memory, stop))
        await asyncio.sleep(minutes * 60)
        stop.set()
        await faults
        await watch
        await asyncio.gather(*tasks)
        seconds = time.monotonic() - began
        problems = [*load.problems, *hand.problems]
        if not await load.is_served(within_s=RECOVERY_S):
            problems.append(f"the pipeline does not serve {RECOVERY_S:g} s after the last fault")
        await asyncio.sleep(QUIET_S)
        problems += [*pipeline.leftovers(), *memory.problems()]
        return {
            "minutes": round(seconds / 60, 2),
            "workers": workers,
            "seed": seed,
            "requests": sum(load.outcomes.values()),
            "outcomes": dict(sorted(load.outcomes.items())),
            "answers_compared": load.compared,
            "longest_over_deadline_s": round(load.longest_over_s, 3),
            "faults": dict(sorted(hand.counts.items())),
            "restarts": dict(pipeline.restarts),
            "kills": kills,
            "memory": memory.report(),
            "problems": problems[:50],
        }


async def watch_memory(pipeline: SoakPipeline, log: MemoryLog, stop: asyncio.Event) -> None:
    """Samples the memory of every process until `stop` is set."""
    while not stop.is_set():
        await asyncio.to_thread(pipeline.sample_memory, log)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), EVERY_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-kills", action="store_true", help="only network faults; no process is killed")
    parser.add_argument("--hostile", action="store_true", help="hostile clients instead of faults")
    parser.add_argument("--media-share", type=float, help="the thinker's maxMediaShare in a soak with hostile clients")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="omni-soak-") as folder:
        if args.hostile:
            report = asyncio.run(run_hostile(args.minutes, Path(folder), args.media_share))
        else:
            report = asyncio.run(soak(args.minutes, args.workers, args.seed, Path(folder), kills=not args.no_kills))
    report["machine"] = {
        "cpus": os.cpu_count(),
        "load_at_end": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    text = format_json(report)
    sys.stdout.write(text)
    if args.json:
        args.json.write_text(text, encoding="utf-8")
    return 1 if report["problems"] or report.get("slow") else 0


if __name__ == "__main__":
    sys.exit(main())
