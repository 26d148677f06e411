"""Images of every mode reach the model as ImageMagick shows them (tests/data/pictures)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from omni_proto.media_headers import read_header
from omni_proto.media_headers.image import ImageHeader
from omni_stage.decoding.decode import decode_image
from support.tables import each_row

FOLDER = Path(__file__).parents[2] / "data" / "pictures"
EXPECTED = np.load(FOLDER / "expected.npz")
TOLERANCE = 2
"""ImageMagick rounds 16 bits to 8, and a mixture with white after that."""


def decode(file: Path) -> np.ndarray:
    data = file.read_bytes()
    header = read_header(data, "image")
    assert isinstance(header, ImageHeader)
    kind = header.media_type.removeprefix("image/").upper()
    return decode_image(data, kind, np.zeros((header.height, header.width, 3), np.uint8))


def test_every_picture_is_expected() -> None:
    files = {file.name for file in FOLDER.iterdir()} - {"README.md", "expected.npz"}
    assert files == set(EXPECTED.files)
    assert len(files) > 60


@each_row("name", EXPECTED.files)
def test_a_picture_is_shown_as_by_imagemagick(name: str) -> None:
    difference = np.abs(decode(FOLDER / name).astype(int) - EXPECTED[name])
    assert difference.max() <= TOLERANCE
