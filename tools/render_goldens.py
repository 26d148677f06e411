"""Writes tests/golden/operator: what `omnipipe render` makes of each sample in WHOLE, and a digest for the others.

For those in LIKE, also the difference from another sample.

`--check` writes nothing and fails if a file is stale. If these files change, the objects in clusters change too when
the operator is upgraded, and every changed pod template restarts pods.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import sys
from pathlib import Path

from omni_cli.commands.render import format_manifests, render_children
from omni_operator.desired.build_settings import BuildSettings
from omni_proto.pipeline.read.offline import load_checked

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "manifests" / "samples"
GOLDEN = ROOT / "tests" / "golden" / "operator"
# The other samples share most of their lines with one of these.
WHOLE = ("generic-llm", "qwen25-omni")
LIKE = {"tiny-omni": "qwen25-omni", "sim-omni": "tiny-omni", "tiny-omni-tls": "tiny-omni"}
STAGES = {"decoder": "token2wav"}
"""Names of stages in a sample, and in the one that it is like."""
# The image is fixed, so that a release does not change every golden file.
SETTINGS = BuildSettings(default_image="omnipipeline-stage:golden", pod_monitors=True)
NAMESPACE = "golden"
_HASH = re.compile(r"(?<=hash: )[^\s,}]+|(?<=-[0-9a-f]{7}-)[0-9a-f]{10}\b")
_REVISION = re.compile(r"omnipipeline\.io/revision: '?([0-9a-f]{7})\b")


def render_sample(sample: Path) -> str:
    """Returns the objects that `omnipipe render` prints for a sample, innermost maps and lists in flow style."""
    return format_manifests(render_children(load_checked(sample), NAMESPACE, SETTINGS), compact=True)


def compare(sample: str, other: str, text: str, other_text: str) -> str:
    """Returns the difference of two renders, without the samples' names, and without hashes, which all differ."""
    for name, like in ((sample, other), *STAGES.items()):
        text = text.replace(name, like)
    sides = []
    for side in (other_text, text):
        side = _HASH.sub("HASH", side)
        for revision in set(_REVISION.findall(side)):
            side = side.replace(revision, "REVISION")
        sides.append(side.splitlines())
    return "\n".join(difflib.unified_diff(*sides, other, sample, n=0, lineterm="")) + "\n"


def render_goldens() -> dict[Path, str]:
    """Returns the text of each golden file."""
    files, digests = dict[Path, str](), ""
    for sample in sorted(SAMPLES.glob("*.yaml")):
        text = render_sample(sample)
        if sample.stem in WHOLE:
            files[GOLDEN / sample.name] = text
            continue
        if other := LIKE.get(sample.stem):
            plain = render_sample(SAMPLES / f"{other}.yaml")
            files[GOLDEN / f"{sample.stem}.diff"] = compare(sample.stem, other, text, plain)
        digests += f"{hashlib.sha256(text.encode()).hexdigest()}  {sample.name}\n"
    return files | {GOLDEN / "digests.sha256": digests}


def list_stale() -> list[str]:
    """Returns the names of golden files that are missing, differ from what would be written, or belong to no sample."""
    wanted = render_goldens()
    stale = [file for file, text in wanted.items() if not file.exists() or file.read_text(encoding="utf-8") != text]
    left_over = [file for file in GOLDEN.glob("*") if file not in wanted]
    return sorted(str(file.relative_to(ROOT)) for file in (*stale, *left_over))


def main() -> int:
    """Write the stale files, or with --check only name them. Returns 1 for stale files with --check, else 0."""
    stale = list_stale()
    if "--check" in sys.argv[1:]:
        for name in stale:
            sys.stderr.write(f"{name} is stale; run `make goldens` and look at the difference\n")
        return 1 if stale else 0
    GOLDEN.mkdir(parents=True, exist_ok=True)
    wanted = render_goldens()
    for name in stale:
        file = ROOT / name
        if file in wanted:
            file.write_text(wanted[file], encoding="utf-8")
        else:
            file.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
