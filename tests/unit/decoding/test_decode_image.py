"""Images are decoded as they are displayed: orientation and transparency are as in Pillow's and vLLM's functions."""

from __future__ import annotations

import importlib.util
import io
import struct
import zlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from omni_stage.decoding.decode import UndecodableError, decode_image
from support.tables import each_row

WIDTH, HEIGHT = 5, 3


@pytest.fixture(scope="module")
def vllm_image() -> ModuleType:
    """Returns vllm/multimodal/image.py, loaded alone, because importing vLLM takes seconds."""
    vllm = importlib.util.find_spec("vllm")
    assert vllm is not None
    assert vllm.submodule_search_locations is not None
    file = Path(vllm.submodule_search_locations[0]) / "multimodal" / "image.py"
    spec = importlib.util.spec_from_file_location("vllm_image", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def random_pixels(channels: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, (HEIGHT, WIDTH, channels), np.uint8)


def encode(image: Image.Image, kind: str, orientation: int | None = None, **options: object) -> bytes:
    tags = Image.Exif()
    if orientation is not None:
        tags[ExifTags.Base.Orientation] = orientation
    file = io.BytesIO()
    image.save(file, kind, exif=tags, **options)
    return file.getvalue()


def decode(data: bytes, kind: str) -> np.ndarray:
    return decode_image(data, kind, np.zeros((HEIGHT, WIDTH, 3), np.uint8)).copy()


@each_row("kind", ["PNG", "JPEG"])
@each_row("orientation", [None, *range(10)])
def test_every_orientation_is_applied(orientation: int | None, kind: str) -> None:
    data = encode(Image.fromarray(random_pixels(3)), kind, orientation)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(decode(data, kind), expected)


def test_damaged_exif_data_leave_the_image_as_it_is() -> None:
    data = encode(Image.fromarray(random_pixels(3)), "JPEG", 6)
    damaged = data.replace(b"MM\x00*", b"MM\x00!").replace(b"II*\x00", b"II!\x00")
    assert damaged != data
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image)
    assert np.array_equal(decode(damaged, "JPEG"), expected)


def palette_image() -> Image.Image:
    image = Image.fromarray(np.arange(WIDTH * HEIGHT, dtype=np.uint8).reshape(HEIGHT, WIDTH), "P")
    image.putpalette([value for index in range(256) for value in (index, 255 - index, 128)])
    return image


@pytest.mark.parametrize(
    ("image", "options"),
    [
        pytest.param(Image.fromarray(random_pixels(4), "RGBA"), {}, id="RGBA"),
        pytest.param(Image.fromarray(random_pixels(2), "LA"), {}, id="grey with alpha"),
        pytest.param(palette_image(), {"transparency": 3}, id="palette with one transparent colour"),
        pytest.param(palette_image(), {"transparency": bytes(range(0, 256, 16))}, id="palette with alphas"),
        pytest.param(
            Image.fromarray(random_pixels(3)), {"transparency": (1, 2, 3)}, id="RGB with a transparent colour"
        ),
        pytest.param(Image.fromarray(random_pixels(1)[..., 0], "L"), {"transparency": 9}, id="grey with one"),
        pytest.param(palette_image(), {}, id="palette"),
        pytest.param(Image.fromarray(random_pixels(1)[..., 0], "L"), {}, id="grey"),
    ],
)
def test_a_transparent_image_is_shown_on_white_as_by_vllm(
    vllm_image: ModuleType, image: Image.Image, options: dict[str, object]
) -> None:
    data = encode(image, "PNG", **options)
    with Image.open(io.BytesIO(data)) as loaded:
        expected = np.asarray(vllm_image.convert_image_mode(loaded, "RGB"))
    assert np.array_equal(decode(data, "PNG"), expected)


def chunk(kind: bytes, data: bytes, crc: int | None = None) -> bytes:
    return (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data) if crc is None else crc)
    )


LONG = zlib.compress(bytes(5 << 20))


@each_row(
    "note",
    [
        chunk(b"tEXt", b"workflow\0{}", crc=1),
        chunk(b"zTXt", b"workflow\0\0" + LONG),
        chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + LONG),
        chunk(b"iCCP", b"profile\0\0" + LONG),
        chunk(b"iCCP", b"profile"),
        chunk(b"pHYs", b"\0"),
        chunk(b"sRGB", b""),
    ],
)
def test_a_png_is_seen_whatever_is_wrong_with_its_notes(note: bytes) -> None:
    """As browsers and libpng show it. Image generators write their workflow into a PNG, some megabytes of text."""
    pixels = random_pixels(3)
    data = encode(Image.fromarray(pixels), "PNG", 6)
    turned = np.rot90(pixels, -1)
    for place in (33, len(data) - 12):  # behind the size, and before the end
        assert np.array_equal(decode(data[:place] + note + data[place:], "PNG"), turned)


@each_row("options", [{}, {"restart_marker_rows": 1}, {"optimize": True}])
@each_row("orientation", [None, 6])
def test_a_jpeg_whose_data_end_before_its_picture_is_refused(
    options: dict[str, object], orientation: int | None
) -> None:
    """Pillow shows the rest grey."""
    pixels = np.random.default_rng(3).integers(0, 256, (64, 48, 3), np.uint8)
    data = encode(Image.fromarray(pixels), "JPEG", orientation, **options)
    half, room = len(data) // 2, np.zeros(pixels.shape, np.uint8)
    for damaged in (
        data[:half],
        data[:half] + b"\xff\xd9",
        data[:half] + b"\xff\xd9 and more",
        data[:half] + bytes(len(data) - half),
    ):
        with pytest.raises(UndecodableError, match="cut off"):
            decode_image(damaged, "JPEG", room)


def test_a_jpeg_may_be_of_one_colour_and_be_followed_by_anything() -> None:
    white, room = np.full((64, 48, 3), 255, np.uint8), np.zeros((64, 48, 3), np.uint8)
    for options in ({}, {"progressive": True}, {"optimize": True}):
        data = encode(Image.fromarray(white), "JPEG", **options)
        files = [data, data + b"junk", data + bytes(900), data + data]
        if "optimize" not in options:  # whose data may end with zeros
            files += [data[:-2], data[:-2] + bytes(900)]
        for file in files:
            assert np.array_equal(decode_image(file, "JPEG", room), white)


def test_a_jpeg_may_lack_its_last_two_bytes_and_no_more() -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (64, 48, 3), np.uint8)
    for options in ({}, {"optimize": True}, {"progressive": True}, {"restart_marker_rows": 1}):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", **options)
        data, room = file.getvalue(), np.zeros(pixels.shape, np.uint8)
        whole = decode_image(data, "JPEG", room).copy()
        assert np.array_equal(decode_image(data[:-2], "JPEG", room), whole)
        for missing in (40, len(data) // 2):
            with pytest.raises(UndecodableError, match="cut off"):
                decode_image(data[:-missing], "JPEG", room)
