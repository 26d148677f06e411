"""Reads the weights of an ONNX file: named tensors, and which node reads which. Nothing in the file is run.

Protobuf's wire format needs sixty lines here. The package onnx would add 20 MB and a second parser to images, and it
copies every tensor. Arrays are views of the file's bytes.
Fields: onnx/onnx.proto3, ModelProto, GraphProto, NodeProto, TensorProto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from omni_stage.errors import ConfigurationError

_DTYPES: Final = {1: "<f4", 6: "<i4", 7: "<i8", 10: "<f2", 11: "<f8"}
"""TensorProto.DataType -> numpy's dtype."""
_TYPED: Final = {4: "<f4", 10: "<f8"}
"""TensorProto's float_data and double_data, in which values lie if there is no raw_data."""
_EXTERNAL: Final = 1
_MAX_BYTES: Final = 2 << 30
"""Protobuf's own limit of a message."""

_Value = int | memoryview


class _MalformedError(Exception):
    """The bytes are not what ONNX defines."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the graph."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    strides: tuple[int, ...] = (1,)
    dilations: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """What the graph of an ONNX file holds."""

    nodes: tuple[Node, ...]
    tensors: dict[str, np.ndarray]
    """The initializers by name; read-only."""


def read_onnx(file: Path) -> OnnxFile:
    """Returns the nodes and initializers of the graph. Raises ConfigurationError naming the file and what is wrong."""
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise ConfigurationError(f"{file} is larger than 2 GiB; it cannot be an ONNX file", field="model.path")
        data = memoryview(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}", field="model.path") from error
    try:
        graphs = [_bytes(value) for number, value in _fields(data) if number == 7]
        if not graphs:
            raise _MalformedError("it has no graph")
        nodes: list[Node] = []
        tensors: dict[str, np.ndarray] = {}
        for number, value in _fields(graphs[-1]):
            if number == 1:
                nodes.append(_read_node(_bytes(value)))
            elif number == 5:
                name, array = _read_tensor(_bytes(value))
                tensors[name] = array
    except (_MalformedError, UnicodeDecodeError, IndexError) as error:
        raise ConfigurationError(
            f"{file} is not an ONNX file that this stage can read ({error}); download it again", field="model.path"
        ) from error
    return OnnxFile(tuple(nodes), tensors)


def _read_node(data: memoryview) -> Node:
    inputs: list[str] = []
    name = operator = ""
    attributes: dict[str, tuple[int, ...]] = {}
    for number, value in _fields(data):
        if number == 1:
            inputs.append(_text(value))
        elif number == 3:
            name = _text(value)
        elif number == 4:
            operator = _text(value)
        elif number == 5:
            attributes |= _read_integers(_bytes(value))
    return Node(name, operator, tuple(inputs), **attributes)


def _read_integers(data: memoryview) -> dict[str, tuple[int, ...]]:
    """Returns an attribute of a convolution that is a list of integers; empty for any other."""
    name, values = "", []
    for number, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number == 8:
            values += [value] if isinstance(value, int) else _varints(value)
    return {name: tuple(values)} if name in ("strides", "dilations") and values else {}


def _read_tensor(data: memoryview) -> tuple[str, np.ndarray]:
    shape: list[int] = []
    kind, name = 0, ""
    raw: memoryview | None = None
    typed: list[np.ndarray] = []
    for number, value in _fields(data):
        if number == 1:
            shape += [value] if isinstance(value, int) else _varints(value)
        elif number == 2:
            kind = _int(value)
        elif number == 8:
            name = _text(value)
        elif number == 9:
            raw = _bytes(value)
        elif number in _TYPED:
            typed.append(np.frombuffer(_bytes(value), _TYPED[number]))
        elif number == 7:  # int64_data
            typed.append(np.array(_varints(_bytes(value)) if not isinstance(value, int) else [value], np.int64))
        elif number == 14 and value == _EXTERNAL:
            raise _MalformedError(f"tensor {name[:80]!r} lies in another file")
    if kind not in _DTYPES:
        return name, np.zeros(0, np.float32)  # a string or a type that no weight has
    array = np.frombuffer(raw, _DTYPES[kind]) if raw is not None else np.concatenate(typed or [np.zeros(0, np.float32)])
    if array.size != int(np.prod(shape, dtype=np.int64)):
        raise _MalformedError(f"tensor {name[:80]!r} of shape {shape[:8]} has {array.size} values")
    return name, array.reshape(shape)


def _fields(data: memoryview) -> Iterator[tuple[int, _Value]]:
    """Yields the number and value of every field of a message."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = _varint(data, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise _MalformedError("a field has an unknown type")
        if place + size > len(data):
            raise _MalformedError("it ends in the middle of a field")
        yield key >> 3, data[place : place + size]
        place += size


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise _MalformedError("it ends in the middle of a number")
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise _MalformedError("a number is too long")


def _varints(data: memoryview) -> list[int]:
    values, place = [], 0
    while place < len(data):
        value, place = _varint(data, place)
        values.append(value if value < 1 << 63 else value - (1 << 64))
    return values


def _bytes(value: _Value) -> memoryview:
    if isinstance(value, int):
        raise _MalformedError("a field is a number where a message is expected")
    return value


def _int(value: _Value) -> int:
    if not isinstance(value, int):
        raise _MalformedError("a field is a message where a number is expected")
    return value


def _text(value: _Value) -> str:
    return bytes(_bytes(value)).decode()
