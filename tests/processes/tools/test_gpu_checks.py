"""`make gpu` without a GPU: the part `torch` runs the checks that a CPU can run, and says why it skips the others."""

from __future__ import annotations

import json
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.bundle import PACKAGES, pins
from benchmarks.gpu.catalogue import CHECKS
from benchmarks.gpu.checks import Check, Context, Finding, at_most, equal, run_check
from benchmarks.gpu.offline import pieces

PAGE = (Path(__file__).parents[3] / "docs" / "gpu-check.md").read_text(encoding="utf-8")
ON_CPU = {
    "environment.versions",
    "environment.compilers",
    "token2wav.attention",
    "token2wav.parity",
    "token2wav.batch",
    "token2wav.windows",
    "token2wav.memory",
    "qwen3_omni.chunks",
    "qwen3_omni.together",
}
"""Checks of the part `torch` that a CPU can run."""

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="these tests say what happens without a GPU")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(device="cpu", gpus=0, out=tmp_path)


def test_the_torch_part_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--part", "torch", "--here", "--out", str(tmp_path / "results")]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    rows = [line.split(" ") for line in lines]
    assert {len(row) for row in rows} == {4}, "STATUS name value limit"
    wanted = [check for check in CHECKS if check.part == "torch"]
    for check in wanted:
        own = [row for row in rows if row[1] == check.name or row[1].startswith(f"{check.name}.")]
        assert own, f"{check.name} printed nothing"
        if check.name in ON_CPU:
            assert {row[0] for row in own} == {"PASS"}, own
        else:
            assert {(row[0], "needs_" in row[2]) for row in own} == {("SKIP", True)}, own
    archive = Path(last.removeprefix("send back "))
    with tarfile.open(archive) as tar:
        assert {"results/results.json", "results/results.txt"} <= set(tar.getnames())
    results = json.loads((tmp_path / "results" / "results.json").read_text())
    assert len(results["results"]) == len(lines)
    linear = [row["data"]["bytes"] for row in results["results"] if row["name"].startswith("token2wav.memory")]
    assert linear[-1] / linear[-2] == pytest.approx(4096 / 750, rel=0.05)


def test_the_arithmetic_of_sharing_needs_no_gpu(context: Context) -> None:
    check = next(check for check in CHECKS if check.name == "sharing.arithmetic")
    assert {result.status for result in run_check(check, context)} == {"PASS"}


def test_every_check_is_on_the_page() -> None:
    for check in CHECKS:
        group, _, rest = check.name.partition(".")
        assert f"`{group}" in PAGE, check.name
        if group in ("token2wav", "sharing", "published") and rest:
            assert f"`.{rest}`" in PAGE or f"`{check.name}`" in PAGE, check.name


def test_every_check_can_be_imported(context: Context) -> None:
    """Every entry of the catalogue names a function that exists. Otherwise a mistake would show only on a GPU."""
    import importlib

    from benchmarks.gpu.catalogue import _TABLE

    for _, _, place, _ in _TABLE:
        module, _, name = place.partition(":")
        assert callable(getattr(importlib.import_module(f"benchmarks.gpu.{module}"), name)), place


def _raises(_: Context) -> Finding:
    raise RuntimeError("device-side assert")


def _several(_: Context) -> Iterator[Finding]:
    yield at_most(0.5, 1, name="half")
    yield at_most(float("nan"), 1, name="nan")
    yield equal("a b", "a b", name="words")
    yield Finding("", name="left", skipped="needs two GPUs")


@pytest.mark.parametrize(
    ("check", "lines"),
    [
        (Check("fails", "torch", _raises), ["FAIL fails RuntimeError:_device-side_assert -"]),
        (Check("gpu", "torch", _raises, ("gpu", "weights")), ["SKIP gpu needs_a_GPU;_needs_MODEL"]),
        (
            Check("many", "torch", _several),
            [
                "PASS many.half 0.5 <=1",
                "FAIL many.nan nan <=1",
                "PASS many.words a_b ==a_b",
                "SKIP many.left needs_two",
            ],
        ),
    ],
    ids=["raises", "lacks", "several"],
)
def test_lines(context: Context, check: Check, lines: list[str]) -> None:
    results = list(run_check(check, context))
    assert len(results) == len(lines)
    for result, line in zip(results, lines, strict=True):
        assert result.line().startswith(line)
        assert ("Traceback" in result.log) == (check.run is _raises and result.status == "FAIL")


def test_a_name_that_no_check_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "nothing", "--out", str(tmp_path)])


def test_the_bundles_packages_are_pinned() -> None:
    assert len(pins()) == len(PACKAGES)
    assert len(pins(pieces.PACKAGES)) == len(pieces.PACKAGES)
    with pytest.raises(ValueError, match="does not pin nothing-at-all"):
        pins(("nothing-at-all",))


def test_a_piece_has_the_wanted_files_and_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    for name in ("vllm/a.py", "vllm/b.so", "grpc/c.py"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(random.Random(name).randbytes(500))
    target = tmp_path / "1" / "rest.tar.xz"
    assert pieces.pack(site, target, lambda name: name.startswith("vllm")) == target.stat().st_size
    with tarfile.open(target) as tar:
        assert sorted(tar.getnames()) == ["vllm/a.py", "vllm/b.so"]
    monkeypatch.setattr(pieces, "LIMIT_BYTES", 800)
    with pytest.raises(RuntimeError, match="the limit is"):
        pieces.pack(site, target, lambda _: True)
