"""The messages that the public client sends for given arguments, and the first bytes of media files."""

from __future__ import annotations

from typing import Unpack

from omni_proto.client.messages import PreparedRequest, prepare_request
from omni_proto.client.prompt import GenerateArguments
from omni_proto.stage.v1.stage_service_pb2 import GenerateRequest

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)
JPEG = b"\xff\xd8\xff\xe0" + bytes(16)
WAV = b"RIFF\x24\0\0\0WAVEfmt " + bytes(16)
FLAC = b"fLaC" + bytes(16)


def prepare(**arguments: Unpack[GenerateArguments]) -> PreparedRequest:
    return prepare_request(arguments)


def sent(**arguments: Unpack[GenerateArguments]) -> list[GenerateRequest]:
    return list(prepare(**arguments).messages())
