"""Decodes an image to pixels, into memory of the size that the header states."""

from __future__ import annotations

import io
import warnings
import zlib
from contextlib import ExitStack
from typing import Final

import numpy as np
from PIL import ExifTags, Image
from PIL.GifImagePlugin import GifImageFile
from PIL.PngImagePlugin import PngImageFile

from omni_proto.media_headers.image import find_jpeg_end

WORK_BYTES_PER_PIXEL: Final = 16
"""Maximum working bytes per pixel while an image is decoded: a progressive CMYK JPEG's coefficients (8), the decoded
picture (4), and its RGB copy (4)."""
_STRIP_PIXELS: Final = 1 << 20
_FILLER: Final = bytes((7 * value * value + 90) % 255 for value in range(64))
"""Bytes that decode to another picture than none, and hold no marker of JPEG."""
_END: Final = b"\xff\xd9"
_FIRST, _LAST = slice(4), slice(-4, None)
_GREY_STEPS: Final = {"L;2": 85, "L;4": 17}
"""The step from one grey level to the next once decoded, by Pillow's name for PNGs of 2 and 4 bits."""


class UndecodableError(Exception):
    """The bytes cannot be decoded. The message is sent to the client and quotes no content."""


def decode_image(data: bytes, kind: str, out: np.ndarray) -> np.ndarray:
    """Decode a PNG, JPEG, WebP or GIF (`kind`) as RGB into the memory of `out`, uint8 [height, width, 3] as the header
    says. Of an animation, the first frame is decoded.

    Returns a view of that memory, uint8 [height, width, 3] as the image is displayed. An orientation in its EXIF data
    is applied, which may exchange width and height. What viewers read past is no error: damaged or very long notes in a
    PNG, and a JPEG whose last two bytes are missing. Transparent pixels become white, as in vLLM
    (vllm/multimodal/image.py). Of 16 bits per sample, the upper 8 are kept. Colour profiles are not applied, as in
    transformers and qwen_vl_utils. Raises UndecodableError or Pillow's errors.
    """
    if kind == "JPEG":
        return _decode_jpeg(data, out)
    try:
        return _decode(data, kind, out)
    except UndecodableError:
        raise
    except Exception:  # whatever Pillow raises
        if kind == "PNG":
            return _decode(_without_notes(data), kind, out)
        raise


def _decode(data: bytes, kind: str, out: np.ndarray) -> np.ndarray:
    height, width, _ = out.shape
    with warnings.catch_warnings():
        # Pillow warns of large images, but the size in this image's header was already checked against a limit.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with ExitStack() as files:
            image = files.enter_context(Image.open(io.BytesIO(data), formats=[kind]))
            if image.size != (width, height):
                raise UndecodableError("the image is not as large as its header says")
            raw_mode = _raw_mode(image)
            image.load()
            low = None
            if raw_mode == "RGB;16B" and "transparency" in image.info:
                low = files.enter_context(_lower_bytes(data, kind))
            shown, encoded = _orient(out, _orientation(image))
            rows = max(1, _STRIP_PIXELS // width)
            for top in range(0, height, rows):
                box = (0, top, width, min(top + rows, height))
                encoded[top : box[3]] = _as_rgb(image.crop(box), raw_mode, low and low.crop(box))
            if isinstance(image, GifImageFile):
                # The first frame may be smaller than the canvas. Viewers show the rest as transparent.
                left, top, right, bottom = image.dispose_extent or (0, 0, width, height)
                encoded[:top] = encoded[bottom:] = encoded[:, :left] = encoded[:, right:] = 255
    return shown


def _without_notes(data: bytes) -> bytes:
    """Returns a PNG without its texts, profiles and other chunks that do not change its pixels or how it is turned.

    Pillow refuses a PNG for one that is damaged or that decompresses to more than 1 MiB, such as the workflow of an
    image generator.
    """
    kept, position = [data[:8]], 8
    while position + 12 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        chunk = data[position : position + 12 + length]
        is_intact = zlib.crc32(chunk[4:-4]) == int.from_bytes(chunk[-4:], "big")
        if chunk[4:5].isupper() or (is_intact and chunk[4:8] in (b"tRNS", b"eXIf")):
            kept.append(chunk)
        position += 12 + length
    return b"".join([*kept, data[position:]])


def _decode_jpeg(data: bytes, out: np.ndarray) -> np.ndarray:
    """Decode a JPEG. It may lack its end marker, as small cameras write it, and have zeros instead.

    Raises UndecodableError if its data end before its picture does. Pillow, and so transformers and vLLM, show the rest
    grey without a word. Bytes that follow the data then become part of the picture.
    """
    end = find_jpeg_end(memoryview(data))
    body = data.rstrip(b"\0") if end is None else data[:end]
    shown = _decode(body + _END if end is None else data, "JPEG", out)
    corners = (shown[rows, columns] for rows in (_FIRST, _LAST) for columns in (_FIRST, _LAST))
    if end is None or any((corner == corner[0, 0]).all() for corner in corners):  # what is missing has one colour
        complete = shown.copy()
        shown = _decode(body + _FILLER + _END, "JPEG", out)
        if not np.array_equal(shown, complete):
            raise UndecodableError("the image is cut off; send all of it")
    return shown


def _raw_mode(image: Image.Image) -> str:
    """Returns Pillow's name of how a PNG that is not loaded yet stores its samples, e.g. "L;2"; "" for other images."""
    args = image.tile[0].args if isinstance(image, PngImageFile) and image.tile else ""
    return args if isinstance(args, str) else ""


def _lower_bytes(data: bytes, kind: str) -> Image.Image:
    """Returns the lower bytes of a PNG with three samples of 16 bits. Otherwise Pillow reads only the upper bytes."""
    image = Image.open(io.BytesIO(data), formats=[kind])
    if not isinstance(image, PngImageFile):
        raise UndecodableError("the image is no PNG")
    # This raw mode is for samples whose upper byte comes second, so Pillow takes that byte, here the lower one.
    image.tile = [image.tile[0]._replace(args="RGB;16L")]
    image.load()
    return image


def _orientation(image: Image.Image) -> int:
    """Returns how to turn and mirror the encoded image: 1 to 8, as in TIFF and EXIF, where 1 means unchanged."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # noqa: BLE001 - damaged EXIF data can raise anything, though the image itself may be intact
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _orient(out: np.ndarray, orientation: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns two views of the same memory: [height, width, 3] of the displayed image, and of the encoded one."""
    height, width, channels = out.shape
    turned = orientation >= 5
    shown = out.reshape(width, height, channels) if turned else out
    mirrored = shown[:, ::-1] if orientation in (2, 3, 6, 7) else shown
    flipped = mirrored[::-1] if orientation in (3, 4, 7, 8) else mirrored
    return shown, flipped.transpose(1, 0, 2) if turned else flipped


def _as_rgb(image: Image.Image, raw_mode: str, low: Image.Image | None) -> np.ndarray:
    """Returns an image on white, uint8 [height, width, 3]. low: the lower bytes, if a colour of 16 bits per sample is
    transparent."""
    transparent = image.info.get("transparency")
    if image.mode == "I;16":
        # Pillow's own conversion would turn every value above 255 into white.
        deep = np.asarray(image)
        rgb = np.repeat((deep >> 8).astype(np.uint8)[..., None], 3, axis=2)
        if transparent is not None:
            rgb[deep == transparent] = 255
        return rgb
    if low is not None:
        rgb = np.array(image)
        deep = rgb.astype(np.uint16) << 8 | np.asarray(low)
        rgb[(deep == transparent).all(axis=2)] = 255
        return rgb
    if raw_mode in _GREY_STEPS and transparent is not None:
        # Pillow spreads the grey levels over 0 to 255, but not the level that is transparent.
        image.info["transparency"] = _GREY_STEPS[raw_mode] * transparent
    if image.mode not in ("RGBA", "LA", "PA") and transparent is None:
        return np.asarray(image.convert("RGB"))
    opaque = Image.new("RGB", image.size, "white")
    layered = image.convert("RGBA")
    opaque.paste(layered, mask=layered.getchannel("A"))
    return np.asarray(opaque)
