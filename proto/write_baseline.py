"""Writes proto/baseline.binpb: the contract that later versions must keep. Run it when a release adds to the contract.

A test compares the .proto files with it: no field may be removed, renumbered or retyped.
"""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from omni_proto.stage.v1 import errors_pb2, events_pb2, prompt_pb2, sampling_pb2, stage_service_pb2, tensors_pb2

MODULES = (errors_pb2, events_pb2, prompt_pb2, sampling_pb2, stage_service_pb2, tensors_pb2)
BASELINE = Path(__file__).with_name("baseline.binpb")


def build_baseline() -> FileDescriptorSet:
    """Returns the contract as the generated stubs describe it, without comments."""
    files = FileDescriptorSet()
    for module in MODULES:
        module.DESCRIPTOR.CopyToProto(files.file.add())
    return files


if __name__ == "__main__":
    BASELINE.write_bytes(build_baseline().SerializeToString(deterministic=True))
