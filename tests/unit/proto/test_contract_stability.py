"""The .proto files stay compatible with the baseline in proto/baseline.binpb, and the committed stubs load with the
oldest versions of grpcio and protobuf that the package allows.

tests/processes/packaging/test_stubs.py generates the stubs anew.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorSet

from omni_proto.stage.v1 import errors_pb2, events_pb2, prompt_pb2, sampling_pb2, stage_service_pb2, tensors_pb2

ROOT = Path(__file__).parents[3]
STUBS = ROOT / "proto" / "omni_proto" / "stage" / "v1"
MODULES = (errors_pb2, events_pb2, prompt_pb2, sampling_pb2, stage_service_pb2, tensors_pb2)


def current_contract() -> FileDescriptorSet:
    files = FileDescriptorSet()
    for module in MODULES:
        module.DESCRIPTOR.CopyToProto(files.file.add())
    return files


def baseline_contract() -> FileDescriptorSet:
    return FileDescriptorSet.FromString((ROOT / "proto" / "baseline.binpb").read_bytes())


def _messages(prefix: str, messages: list[DescriptorProto]) -> Iterator[tuple[str, str]]:
    for message in messages:
        name = f"{prefix}.{message.name}"
        yield name, "message"
        for field in message.field:
            oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            yield (
                f"{name}.{field.name}",
                f"number {field.number} type {field.type} {field.type_name} label {field.label} oneof {oneof}",
            )
        yield from _messages(name, list(message.nested_type))
        yield from _enums(name, list(message.enum_type))


def _enums(prefix: str, enums: list[EnumDescriptorProto]) -> Iterator[tuple[str, str]]:
    for enum in enums:
        for value in enum.value:
            yield f"{prefix}.{enum.name}.{value.name}", f"number {value.number}"


def facts(files: FileDescriptorSet) -> dict[str, str]:
    """Returns what must not change, by full name: fields' numbers and types, enum values' numbers, methods' types."""
    found: dict[str, str] = {}
    for file in files.file:
        found.update(_messages(file.package, list(file.message_type)))
        found.update(_enums(file.package, list(file.enum_type)))
        for service in file.service:
            for method in service.method:
                streams = f"{method.client_streaming} {method.server_streaming}"
                found[f"{file.package}.{service.name}.{method.name}"] = (
                    f"{method.input_type} {method.output_type} {streams}"
                )
    return found


def broken_promises(old: FileDescriptorSet, new: FileDescriptorSet) -> dict[str, str]:
    now = facts(new)
    return {name: f"{was} -> {now.get(name, 'gone')}" for name, was in facts(old).items() if now.get(name) != was}


def test_baseline_is_kept() -> None:
    broken = broken_promises(baseline_contract(), current_contract())
    assert not broken, f"removed, renumbered or retyped since proto/baseline.binpb: {broken}"


def test_baseline_covers_the_service() -> None:
    known = facts(baseline_contract())
    assert "omni_proto.stage.v1.StageService.Generate" in known
    assert "omni_proto.stage.v1.TensorChunk.data" in known
    assert "omni_proto.stage.v1.DType.DTYPE_BFLOAT16" in known


def _first_file(files: FileDescriptorSet, name: str) -> DescriptorProto:
    return next(m for file in files.file for m in file.message_type if m.name == name)


def _remove(files: FileDescriptorSet) -> None:
    del _first_file(files, "TensorChunk").field[0]


def _renumber(files: FileDescriptorSet) -> None:
    _first_file(files, "TensorChunk").field[0].number = 99


def _retype(files: FileDescriptorSet) -> None:
    _first_file(files, "TensorChunk").field[1].type = 3


def _rename(files: FileDescriptorSet) -> None:
    _first_file(files, "TensorChunk").field[1].name = "offset"


def _remove_enum_value(files: FileDescriptorSet) -> None:
    enum = next(e for file in files.file for e in file.enum_type if e.name == "DType")
    del enum.value[1]


@pytest.mark.parametrize("change", [_remove, _renumber, _retype, _rename, _remove_enum_value])
def test_a_break_is_seen(change: Callable[[FileDescriptorSet], None]) -> None:
    changed = copy.deepcopy(current_contract())
    change(changed)
    assert broken_promises(current_contract(), changed)


def test_additions_are_free() -> None:
    changed = current_contract()
    _first_file(changed, "TensorChunk").field.add(name="later", number=6, type=13, label=1)
    assert not broken_promises(current_contract(), changed)


def test_the_stubs_load_with_the_oldest_versions_that_the_package_allows() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    oldest = dict(re.match(r"([\w-]+)>=([\d.]+)", line).groups() for line in declared)
    protobuf = {re.search(r"Protobuf Python Version: (\S+)", path.read_text())[1] for path in STUBS.glob("*_pb2.py")}
    assert protobuf == {oldest["protobuf"]}
    grpcio = re.search(r"GRPC_GENERATED_VERSION = '(\S+)\.0'", (STUBS / "stage_service_pb2_grpc.py").read_text())
    assert grpcio is not None
    assert grpcio[1] == oldest["grpcio"] == oldest["grpcio-status"]
