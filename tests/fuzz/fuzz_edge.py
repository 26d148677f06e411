"""Fuzzing of everything that reads bytes of a peer: decode -> validate. `make fuzz`.

An input's first byte picks the reader, the rest is what it reads. Whatever the bytes are, only the documented errors
come out; anything else, or a contradiction between two ways to read the same, is a crash. The corpus is also run by
`make test`, without atheris.

    python tests/fuzz/fuzz_edge.py [--runs N] [--json FILE] [--corpus DIRECTORY] [--media]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    import atheris

    # Coverage of our code alone: what is imported in here.
    with atheris.instrument_imports(
        include=["omni_proto", "omni_stage.service", "omni_stage.payloads", "omni_stage.media"]
    ):
        from fuzz import media_targets, targets
else:
    from fuzz import media_targets, targets

MEDIA_FROM = 0xF0
"""First bytes that pick a reader of media; those below pick another."""


def check_input(data: bytes) -> None:
    """Run one input. Raises whatever is not an answer to bad bytes."""
    if data:
        readers = targets.TARGETS if data[0] < MEDIA_FROM else media_targets.TARGETS
        readers[data[0] % len(readers)](data[1:])


def write_report(path: Path, corpus: Path, runs: int, seconds: float) -> None:
    """Figures of a run that found nothing."""
    report = {
        "executions": runs,
        "uncaught": 0,
        "seconds": round(seconds, 1),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "corpus_files": sum(1 for _ in corpus.iterdir()),
        "targets": [target.__name__ for target in (*targets.TARGETS, *media_targets.TARGETS)],
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
    }
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="inputs that reach new code are added here")
    parser.add_argument("--media", action="store_true", help="images, sounds and the resampler alone")
    args = parser.parse_args()
    began = time.monotonic()
    executions = 0

    def one(data: bytes) -> None:
        nonlocal executions
        check_input(bytes((MEDIA_FROM | data[0] & 0xF,)) + data[1:] if args.media and data else data)
        executions += 1
        if executions == args.runs and args.json:
            write_report(args.json, args.corpus, executions, time.monotonic() - began)

    options = [
        f"-runs={args.runs}",
        "-max_len=1024",
        "-rss_limit_mb=1024",
        "-timeout=10",
        "-seed=1",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], f"-runs={args.runs}", *options, str(args.corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
