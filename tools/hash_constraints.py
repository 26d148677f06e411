"""`make constraints`: writes the hashes of the wheels that the images install, constraints/hashes-cpu.txt and -gpu.txt.

    python tools/hash_constraints.py UV

UV is the program. Of each pinned package, the files hold the wheels that uv chooses for Python 3.11 on Linux, on both
architectures, with an older and with the base image's glibc. The Dockerfile lets uv install only files with these
hashes. The hashes are those that the package index states.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints"
IMAGES = {
    "cpu": (("operator", "gateway", "otel"), ("stage",), ("cpu",), ("cli", "gateway", "timeline")),
    "gpu": (("gpu",),),
}
"""By file: the extras of each image that it is for, as in the Dockerfile."""
PLATFORMS = ("x86_64-manylinux_2_28", "x86_64-manylinux_2_36", "aarch64-manylinux_2_28", "aarch64-manylinux_2_36")


def lock(uv: str, pins: str, extras: Sequence[str], platform: str, *flags: str) -> dict[str, set[str]]:
    """Returns the hashes by NAME==VERSION of what uv, with these flags, would install. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "pylock.toml"
        command = [uv, "pip", "compile", "--quiet", "--format=pylock.toml", "--python-version=3.11", *flags]
        command += [f"--python-platform={platform}", f"--constraint={CONSTRAINTS / f'{pins}.txt'}"]
        command += [f"--override={CONSTRAINTS / f'overrides-{pins}.txt'}", f"--output-file={output}"]
        command += [f"--extra={extra}" for extra in extras]
        subprocess.run([*command, str(CONSTRAINTS.parent / "pyproject.toml")], check=True)
        packages = tomllib.loads(output.read_text(encoding="utf-8"))["packages"]
    # A package without a wheel is built from its source.
    return {
        f"{one['name']}=={one['version']}": {file["hashes"]["sha256"] for file in one.get("wheels") or [one["sdist"]]}
        for one in packages
    }


def write(file: Path, locks: Iterable[dict[str, set[str]]]) -> None:
    """Write all hashes of each package on one line."""
    found: dict[str, set[str]] = {}
    for one in locks:
        for package, hashes in one.items():
            found.setdefault(package, set()).update(hashes)
    lines = (" ".join([name, *(f"--hash=sha256:{digest}" for digest in sorted(found[name]))]) for name in sorted(found))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Write the files. A platform for which an image's packages have no wheels is left out."""
    (uv,) = sys.argv[1:]
    for pins, images in IMAGES.items():
        locks = []
        for platform in PLATFORMS:
            for extras in images:
                try:
                    locks.append(lock(uv, pins, extras, platform))
                except subprocess.CalledProcessError:
                    sys.stderr.write(f"{pins}: no packages of {'+'.join(extras)} for {platform}\n")
        write(CONSTRAINTS / f"hashes-{pins}.txt", locks)


if __name__ == "__main__":
    main()
