"""`make sbom`: writes a bill of materials (CycloneDX 1.6) of the Python packages of each image and of the shared
libraries in their wheels, and checks the licences.

    python tools/sbom.py --out sbom

The script finds the packages of an image by following the requirements of the image's extras through the installed
packages, which come from the same constraints as those of the images. It exits with 1 and names the package or library
if a licence is not accepted, or if a wheel has a library that bundled_libraries.toml does not name. The bills do not
contain Debian packages of the base image, or code that is linked into a package's own modules; for Rust, wheels have
bills of their own (*.dist-info/sboms). There is no bill for the GPU image, because its packages are not installed here.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
IMAGES = {
    "operator": ("operator", "gateway", "otel"),
    "stage-cpu": ("cpu",),
    "demo": ("cli", "gateway", "timeline"),
}
"""The extras of pyproject.toml that each image installs, as in the Dockerfile. The demo's are on top of stage-cpu's."""
BUNDLED = tomllib.loads((ROOT / "tools" / "bundled_libraries.toml").read_text(encoding="utf-8"))
OVERRIDES = ROOT / "constraints" / "overrides-cpu.txt"

_SPDX = {
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "Python Software Foundation License": "PSF-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "OSI Approved": "",
    "DFSG approved": "",
}
"""SPDX expressions by the names that classifiers and License fields use. Empty: the name says nothing."""
PERMISSIVE = frozenset(
    (
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "Apache-2.0",
        "LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "0BSD",
        "ISC",
        "PSF-2.0",
    )
) | {
    "CNRI-Python",
    "BSL-1.0",
    "Unlicense",
    "CC0-1.0",
    "Zlib",
    "BSD-3-Clause-Clear",
    "FTL",
    "IJG",
    "libpng-2.0",
    "libtiff",
    "OpenSSL",
}
BY_NAME: Mapping[str, str] = {
    "soxr": "LGPL-2.1-or-later: imported as it is, replaceable",
    "pycountry": "LGPL-2.1-only: imported as it is, replaceable",
    "certifi": "MPL-2.0: its files are not changed",
    "tqdm": "MPL-2.0 AND MIT: its files are not changed",
    "pathspec": "MPL-2.0: its files are not changed",
    "supervisor": "BSD-derived: the Repoze licence",
    "prometheus-fastapi-instrumentator": "ISC: its metadata names no licence, its LICENSE file does",
    "setuptools": "MIT: its metadata names no licence, its LICENSE file does",
    "intel-openmp": "Intel's EULA for developer tools: anyone who distributes an image must read it",
    "intel-cmplr-lib-ur": "Intel's EULA for developer tools: anyone who distributes an image must read it",
    "oss-harmony": "Apache-2.0: its metadata names no licence, its LICENSE file does",
}
"""Packages whose licence a person has read, each with the reason why it may be shipped."""
NVIDIA = re.compile(r"(nvidia|cuda)-")
"""Libraries that torch's wheels require. They have NVIDIA's licences, which anyone who distributes an image must
read."""


@dataclass(frozen=True, slots=True, order=True)
class Library:
    """A shared library in a wheel."""

    name: str
    version: str
    """The version in the file's name; empty if it has none."""
    file: str
    """Path in the wheel."""

    @property
    def licence(self) -> str:
        """An SPDX expression; empty if the library is unknown."""
        known = BUNDLED["library"].get(self.name, "")
        return known if isinstance(known, str) else str(known["licence"])

    @property
    def accepted(self) -> bool:
        """Whether its licence is permissive, or was accepted with a reason."""
        return is_permissive(self.licence) or not isinstance(BUNDLED["library"].get(self.name, ""), str)


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """An installed package."""

    name: str
    version: str
    licence: str
    """An SPDX expression if the package's metadata gives one, else the metadata's own words; empty if there are
    none."""
    libraries: tuple[Library, ...] = ()
    """The shared libraries of others in its wheel."""


def read_licence(fields: metadata.PackageMetadata) -> str:
    """Returns the licence in a package's metadata, as an SPDX expression if its words are known."""
    if expression := fields.get("License-Expression"):
        return str(expression)
    lines = [str(line) for line in fields.get_all("Classifier") or ()]
    classifiers = [line.rsplit(" :: ", 1)[-1] for line in lines if line.startswith("License")]
    words = [spdx for word in classifiers if (spdx := _SPDX.get(word, word))]
    if words:
        return " OR ".join(sorted(set(words)))
    first = (str(fields.get("License") or "").splitlines() or [""])[0].strip()
    return _SPDX.get(first, first)


def is_permissive(expression: str) -> bool:
    """Returns whether every licence that the expression names is permissive."""
    names = [name for name in re.split(r"\s+|[()]", expression) if name and name not in ("AND", "OR", "WITH")]
    return bool(names) and all(name in PERMISSIVE for name in names)


_LIBRARY = re.compile(
    r"(?:^|/)lib(?P<name>[^/]+?)(?:[-.][0-9a-f]{8})*(?P<tail>\.[0-9.]+)?\.so(?:\.(?P<version>[0-9.]+[a-z]?))?[^/]*$"
)
"""libNAME-HASH.so.VERSION. The hash is of auditwheel; one library has its version before .so."""


def list_libraries(package: str, files: Iterable[str]) -> tuple[Library, ...]:
    """Returns the shared libraries of others among the files of a wheel, sorted. Libraries that are the package's own
    code are left out, as are extension modules of Python, whose names do not begin with lib."""
    own = BUNDLED["own"].get(package, ["*"] if NVIDIA.match(package) else [])
    found = set()
    for file in files:
        path = _LIBRARY.search(file) or re.search(r"\.libs/(?P<name>[^/]+?)(?P<tail>)(?P<version>)$", file)
        if path is None or "*" in own or path["name"] in own:
            continue
        # The wheel of soundfile puts the machine into the name.
        name = re.sub(r"_(x86_64|aarch64|arm64)$", "", path["name"])
        found.add(Library(name, (path["version"] or path["tail"] or "").strip("."), file))
    return tuple(sorted(found))


def find_library_problems(packages: Iterable[Package]) -> list[str]:
    """Returns a message for each library whose licence is unknown, or is neither permissive nor has a reason."""
    return [
        f"{one.name} {one.version}: its wheel has {library.file}, licence {library.licence or 'unknown'!r}; read it, "
        "and name the library in tools/bundled_libraries.toml, or replace the package"
        for one in packages
        for library in one.libraries
        if not library.accepted
    ]


def find_problems(packages: Iterable[Package]) -> list[str]:
    """Returns a message for each package whose licence is neither permissive nor accepted by name."""
    return [
        f"{one.name} {one.version}: licence {one.licence or 'unknown'!r} is neither permissive nor agreed to; read it, "
        "and name the package in BY_NAME of tools/sbom.py or replace it"
        for one in packages
        if not is_permissive(one.licence) and one.name not in BY_NAME and not NVIDIA.match(one.name)
    ]


def list_packages(*chosen: str) -> list[Package]:
    """Returns the installed packages that omnipipeline with these extras needs, without itself, sorted by name.

    Raises LookupError if one is not installed.
    """
    overridden = {canonicalize_name(Requirement(line).name) for line in _lines(OVERRIDES)}
    found: dict[str, Package] = {}
    waiting = [("omnipipeline", frozenset(chosen))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            if name in overridden:
                continue
            raise LookupError(f"{name} is needed and not installed; run make setup") from error
        libraries = list_libraries(name, map(str, package.files or ()))
        found[name] = Package(name, package.version, read_licence(package.metadata), libraries)
        for requirement in map(Requirement, package.requires or ()):
            if any(_applies(requirement, one) for one in (*extras, "")):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    del found["omnipipeline"]
    return sorted(found.values())


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _lines(file: Path) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def write_bom(image: str, packages: Iterable[Package], file: Path) -> None:
    """Write the bill of packages, and of the image's data, as CycloneDX 1.6 JSON.

    Raises ValueError if it does not conform to the schema.
    """
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
    from packageurl import PackageURL

    licences = LicenseFactory()
    bom = Bom()
    root = bom.metadata.component = Component(name=f"omnipipeline-{image}", type=ComponentType.CONTAINER)
    for one in packages:
        address = PackageURL("pypi", name=one.name, version=one.version)
        component = Component(
            name=one.name,
            version=one.version,
            type=ComponentType.LIBRARY,
            bom_ref=str(address),
            purl=address,
            licenses=[licences.make_from_string(one.licence)] if one.licence else (),
            components=[
                Component(
                    name=library.name,
                    version=library.version or None,
                    type=ComponentType.LIBRARY,
                    bom_ref=f"{address}#{library.file}",
                    licenses=[licences.make_from_string(library.licence)] if library.licence else (),
                )
                for library in one.libraries
            ],
        )
        bom.components.add(component)
        bom.register_dependency(root, [component])
    for name, one in list_data(image).items():
        licence = licences.make_from_string(one["licence"])
        bom.components.add(
            Component(name=name, version=one["version"], type=ComponentType.DATA, bom_ref=name, licenses=[licence])
        )
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    if errors := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"the bill of {image} is not CycloneDX 1.6: {errors}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n", encoding="utf-8")


def list_data(image: str) -> dict[str, dict[str, str]]:
    """Returns licence and version, by name, of the files of data that an image has."""
    return {name: one for name, one in BUNDLED["data"].items() if image in one["images"]}


def main() -> int:
    """Write the bills, and print each package whose licence is not accepted. Returns 1 if there is one, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "sbom")
    options = parser.parse_args()
    problems: list[str] = []
    for image, extras in IMAGES.items():
        packages = list_packages(*extras)
        file = options.out / f"{image}.cdx.json"
        write_bom(image, packages, file)
        libraries = sum(len(one.libraries) for one in packages)
        sys.stdout.write(f"{file}: {len(packages)} packages, {libraries} libraries in them\n")
        problems += [
            f"{image}: {name}: licence {one['licence']!r} is not permissive"
            for name, one in list_data(image).items()
            if not is_permissive(one["licence"])
        ]
        problems += [f"{image}: {one}" for one in find_problems(packages) + find_library_problems(packages)]
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
