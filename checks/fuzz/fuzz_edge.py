"""`make fuzz`: fuzzes all code that decodes and validates bytes from a peer.

An input's first byte selects the reader, and the rest is what it reads. A reader may raise only documented errors. Any
other exception, or a contradiction between two ways to read the same bytes, is a crash. `make test-all` also runs the
corpus, without atheris.

    PYTHONPATH=tests python -m checks.fuzz.fuzz_edge [--runs N] [--json FILE] [--corpus DIRECTORY] [--media]
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import sys
import time
from pathlib import Path

from tools.json_text import format_json

CORPUS = Path(__file__).parent / "corpus"
if __name__ == "__main__":
    import atheris

    # Only modules imported inside this block are instrumented for coverage.
    with atheris.instrument_imports(
        include=["omni_proto", "omni_stage.service", "omni_stage.payloads", "omni_stage.decoding", "omni_stage.forms"]
    ):
        from checks.fuzz import form_targets, media_targets, targets
else:
    from checks.fuzz import form_targets, media_targets, targets

FORMS_FROM, MEDIA_FROM = 0xE0, 0xF0
"""First bytes from these values on select a reader of forms of the text, and of media; smaller ones select one of the
other readers."""


def check_input(data: bytes) -> None:
    """Runs one input. Raises any error that is not a documented answer to bad bytes."""
    if data:
        kind = (data[0] >= FORMS_FROM) + (data[0] >= MEDIA_FROM)
        readers = (targets.TARGETS, form_targets.TARGETS, media_targets.TARGETS)[kind]
        readers[data[0] % len(readers)](data[1:])


def write_report(path: Path, corpus: Path, runs: int, seconds: float) -> None:
    """Writes the figures of a run that found no crash."""
    report = {
        "executions": runs,
        "uncaught": 0,
        "seconds": round(seconds, 1),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "corpus_files": sum(1 for _ in corpus.iterdir()),
        "targets": [target.__name__ for target in (*targets.TARGETS, *form_targets.TARGETS, *media_targets.TARGETS)],
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
    }
    path.write_text(format_json(report), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="inputs that reach new code are added here")
    parser.add_argument("--media", action="store_true", help="only images, audio, video and the resampler")
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
