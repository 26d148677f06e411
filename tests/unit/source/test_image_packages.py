"""The images install only files whose hashes are in constraints/, of the pinned versions."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tools import sbom

ROOT = Path(__file__).parents[3]
CONSTRAINTS = ROOT / "constraints"
DIGEST = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def read_hashes(pins: str) -> dict[str, list[str]]:
    """Returns the hashes by NAME==VERSION."""
    lines = (CONSTRAINTS / f"hashes-{pins}.txt").read_text(encoding="utf-8").splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines}


@pytest.mark.parametrize("pins", ["cpu", "gpu"])
def test_the_hashes_are_those_of_the_pinned_versions(pins: str) -> None:
    pinned = set((CONSTRAINTS / f"{pins}.txt").read_text(encoding="utf-8").split())
    hashes = read_hashes(pins)
    assert set(hashes) <= pinned
    assert all(found and all(DIGEST.fullmatch(one) for one in found) for found in hashes.values())


def test_every_package_of_an_image_has_hashes() -> None:
    hashes = read_hashes("cpu")
    for extras in sbom.IMAGES.values():
        assert {f"{one.name}=={one.version}" for one in sbom.list_packages(*extras)} <= set(hashes)


def test_a_list_without_a_hash_is_refused(tmp_path: Path) -> None:
    """The script that the Dockerfile runs."""
    hashes, good, bad = (tmp_path / name for name in ("hashes", "good", "bad"))
    hashes.write_text(f"a==1 --hash=sha256:{'0' * 64}\nb==2 --hash=sha256:{'1' * 64}\n")
    good.write_text("b==2\na==1\n")
    bad.write_text("a==1\nb==3\n")
    script = ["sh", str(ROOT / "tools" / "add-hashes.sh"), str(hashes)]
    subprocess.run([*script, str(good)], check=True)
    assert good.read_text().splitlines() == [f"b==2 --hash=sha256:{'1' * 64}", f"a==1 --hash=sha256:{'0' * 64}"]
    refused = subprocess.run([*script, str(bad)], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "no hash of b==3" in refused.stderr
    assert bad.read_text() == "a==1\nb==3\n"


def test_uv_is_pinned_with_its_hashes() -> None:
    text = (CONSTRAINTS / "uv.txt").read_text(encoding="utf-8")
    assert re.search(r"^uv==[0-9.]+ ", text, re.MULTILINE)
    assert len(DIGEST.findall(text)) > 10
    for file in ("Dockerfile", "tools/setup.sh"):
        assert "--require-hashes --requirement" in (ROOT / file).read_text(encoding="utf-8")
