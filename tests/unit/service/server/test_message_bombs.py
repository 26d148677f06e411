"""Messages that are small on the wire but large or deeply nested once decoded. Only protobuf's upb may decode them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import grpc
import pytest

from omni_proto.stage.v1 import prompt_pb2, stage_service_pb2 as pb
from omni_stage.errors import ConfigurationError
from omni_stage.process.startup import require_upb
from support.machine.raw_http2 import RawConnection, grpc_message
from support.processes.polling import PATIENCE_S
from support.stages import scripted_stages as lab

GENERATE = "/omni_proto.stage.v1.StageService/Generate"
MIB = 1 << 20
BEGIN_GROUP, END_GROUP = b"\x0b", b"\x0c"


def peak_bytes() -> int:
    """Returns the peak resident memory of this process."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def gzip_of_zeros(mib: int) -> bytes:
    packer, zeros = zlib.compressobj(1, wbits=31), bytes(MIB)
    return b"".join([*(packer.compress(zeros) for _ in range(mib)), packer.flush()])


async def test_a_gzip_bomb_is_too_large(kit: Any) -> None:
    stage = await kit.serve()
    call = stage.channel.stream_stream(GENERATE)(
        iter([bytes(16 * MIB)]), compression=grpc.Compression.Gzip, timeout=PATIENCE_S
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [answer async for answer in call]
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await lab.ask(stage)).text == "Hello"


async def test_a_gzip_bomb_is_not_unpacked_beyond_the_limit(kit: Any) -> None:
    """gRPC unpacks 256 MiB, compressed to about 1 MB, only up to the size limit of a message.

    The server runs in this process, so peak_bytes() measures it.
    """
    stage = await kit.serve()
    bomb = grpc_message(gzip_of_zeros(256), compressed=True)
    assert (await lab.ask(stage)).text == "Hello"
    before = peak_bytes()

    def throw() -> dict[int, str]:
        with RawConnection(stage.server.ports.grpc) as peer:
            peer.send(peer.call(GENERATE, ("grpc-encoding", "gzip")), bomb)
            peer.read(lambda: peer.ended)
            return peer.ended

    assert await asyncio.to_thread(throw) == {1: "trailers"}
    assert peak_bytes() - before < 64 * MIB
    assert (await lab.ask(stage)).text == "Hello"


@pytest.mark.parametrize(
    ("depth", "says"), [(120, "truncated or damaged"), (3_000, "truncated or damaged"), (1 * MIB, "fields")]
)
async def test_what_is_nested_too_deep_is_not_decoded(kit: Any, depth: int, says: str) -> None:
    stage = await kit.serve()
    call = stage.channel.stream_stream(GENERATE)(iter([BEGIN_GROUP * depth + END_GROUP * depth]), timeout=PATIENCE_S)
    with pytest.raises(grpc.aio.AioRpcError, match=says) as caught:
        _ = [answer async for answer in call]
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert (await lab.ask(stage)).text == "Hello"


def test_no_message_nests_in_itself() -> None:
    """No message type contains itself, so a deeply nested message is never a legal request."""

    def depth(message: Any, above: tuple[str, ...] = ()) -> int:
        assert message.full_name not in above, message.full_name
        inner = [field.message_type for field in message.fields if field.message_type]
        return 1 + max((depth(one, (*above, message.full_name)) for one in inner), default=0)

    assert depth(pb.GenerateRequest.DESCRIPTOR) < 10
    assert depth(prompt_pb2.ContentPart.DESCRIPTOR) < 10


@pytest.mark.parametrize(
    ("given", "remedy"),
    [("python", "unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION (it is 'python')"), (None, "from its binary wheel")],
)
def test_only_upb_will_do(given: str | None, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", raising=False)
    if given:
        monkeypatch.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", given)
    require_upb()
    require_upb("upb")
    with pytest.raises(ConfigurationError, match=re.escape(remedy)):
        require_upb("python")


def test_a_stage_without_upb_does_not_start(tmp_path: Path) -> None:
    file, note = tmp_path / "stage.yaml", tmp_path / "termination"
    file.write_text(
        "schemaVersion: 1\npipeline: p\nstage: thinker\ncomponent: qwen2_5_omni/thinker\n"
        "model: {path: /model}\noutputs: [Text]\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "omni_stage", "serve", "--config", str(file)],
        env=os.environ | {"OMNI_TERMINATION_LOG": str(note), "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 78, result.stderr
    said = json.loads(note.read_text())
    assert (said["reason"], said["field"]) == ("InvalidConfiguration", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION")
    assert "'upb'" in said["message"]
