"""`make soak`: mixed load on a tiny pipeline of real stages while a hand breaks networks, engines and stages at random.

    PYTHONPATH=tests python -m soak --minutes 30 --json benchmarks/results/soak.json

Fails if a call outlives its deadline by more than 2 s, ends with a code that no fault explains, or answers otherwise
than it did before the first fault; or if, after the last fault, the pipeline does not serve or holds anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from omni_proto.client import AsyncOmniClient
from soak.faults import FaultHand
from soak.load import Load
from soak.pipeline import SoakPipeline

QUIET_S = 10.0
RECOVERY_S = 30.0


async def soak(minutes: float, workers: int, seed: int, folder: Path) -> dict[str, object]:
    """Run it. The report; its `problems` is empty if all went well."""
    rng = random.Random(seed)
    async with AsyncExitStack() as stack:
        pipeline = SoakPipeline(folder)
        stack.callback(pipeline.close)
        await asyncio.to_thread(pipeline.start)
        client = await stack.enter_async_context(AsyncOmniClient(pipeline.proxies["thinker"].target))
        load = Load(client, rng)
        await load.learn()
        before = pipeline.memory_mib()
        hand = FaultHand(pipeline, random.Random(seed + 1))
        began = time.monotonic()
        stop = asyncio.Event()
        tasks = [asyncio.create_task(load.work(stop)) for _ in range(workers)]
        faults = asyncio.create_task(hand.work(stop))
        await asyncio.sleep(minutes * 60)
        stop.set()
        await faults
        await asyncio.gather(*tasks)
        seconds = time.monotonic() - began
        problems = [*load.problems, *hand.problems]
        if not await load.is_served(within_s=RECOVERY_S):
            problems.append(f"the pipeline does not serve {RECOVERY_S:g} s after the last fault")
        await asyncio.sleep(QUIET_S)
        problems += pipeline.leftovers()
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
            "memory_mib": {"before": before, "after": pipeline.memory_mib()},
            "problems": problems[:50],
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="omni-soak-") as folder:
        report = asyncio.run(soak(args.minutes, args.workers, args.seed, Path(folder)))
    report["machine"] = {
        "cpus": os.cpu_count(),
        "load_at_end": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    text = json.dumps(report, indent=2) + "\n"
    sys.stdout.write(text)
    if args.json:
        args.json.write_text(text, encoding="utf-8")
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
