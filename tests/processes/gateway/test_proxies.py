"""Behind real proxies nobody's request can give another user a wrong answer.

The proxies pass offers of other protocols on and use one connection to the gateway for several users. Between them and
the gateway, a relay cuts the bytes into pieces of 1,448, as Ethernet does.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from omni_cli.local.ports import pick_ports
from support.peers.gateways import run_gateway
from support.processes.build_cache import cache_root, fill_once
from support.processes.foreign_programs import CLIENTS
from support.processes.polling import PATIENCE_S, until

pytestmark = pytest.mark.full  # builds a Go program, and fetches nginx

PIECE = 1448
EATEN = b"\r\n" * 1500 + b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-request-id: SMUGGLED\r\nx-eat: "
NGINX = """
daemon off; pid nginx.pid; error_log stderr; worker_processes 1;
events {{}}
http {{
  access_log off; client_body_temp_path .; proxy_temp_path .; fastcgi_temp_path .; uwsgi_temp_path .; scgi_temp_path .;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
  upstream gateway {{ server 127.0.0.1:{target}; keepalive 1; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://gateway; proxy_http_version 1.1; proxy_request_buffering off;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;
    }}
  }}
}}
"""


@contextlib.asynccontextmanager
async def relay(target: int) -> AsyncIterator[int]:
    """Yields the port of a relay to `target` that sends pieces of 1,448 bytes, each on its own."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, piece: int) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(piece):
                writer.write(data)
                await writer.drain()
                if len(data) == PIECE:
                    await asyncio.sleep(0.002)  # the gateway reads
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pump(reader, far_writer, PIECE), pump(far_reader, writer, 65536))

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@contextlib.asynccontextmanager
async def go_proxy(folder: Path, target: int) -> AsyncIterator[int]:
    go = shutil.which("go")
    assert go is not None, "install Go"
    shutil.copytree(CLIENTS / "goproxy", folder / "goproxy")
    build = await asyncio.create_subprocess_exec(go, "build", "-o", "proxy", ".", cwd=folder / "goproxy")
    assert await build.wait() == 0
    process = await asyncio.create_subprocess_exec(
        str(folder / "goproxy" / "proxy"), f"http://127.0.0.1:{target}", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield int(await asyncio.wait_for(process.stdout.readline(), PATIENCE_S))
    finally:
        process.kill()
        await process.wait()


def find_nginx() -> str:
    """Returns nginx: the installed one, or else Debian's, which is unpacked into the cache."""
    if found := shutil.which("nginx"):
        return found
    folder = cache_root() / "nginx"

    def fill(building: Path) -> None:
        command = ["apt-get", "-o", "APT::Sandbox::User=root", "download", "nginx"]
        subprocess.run(command, cwd=building, check=True, capture_output=True)
        (package,) = building.glob("nginx_*.deb")
        subprocess.run(["dpkg", "-x", str(package), str(building)], check=True)

    if not folder.is_dir():
        fill_once(folder, "nginx", fill)
    return str(folder / "usr" / "sbin" / "nginx")


@contextlib.asynccontextmanager
async def nginx_proxy(folder: Path, target: int) -> AsyncIterator[int]:
    (port,) = pick_ports(1)
    (folder / "nginx.conf").write_text(NGINX.format(port=port, target=target))
    process = await asyncio.create_subprocess_exec(find_nginx(), "-p", str(folder), "-c", "nginx.conf")
    try:
        await until(lambda: _listens(port))
        yield port
    finally:
        process.terminate()
        await process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


async def ask(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    with contextlib.suppress(TimeoutError, OSError):
        return await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    return b""


def attack(pad: int) -> bytes:
    """Returns a request that offers another protocol, and whose body ends within a request. `pad` moves the place at
    which the relay cuts its header. A parser that skips a part of the body skips the empty lines, too."""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, close\r\nUpgrade: h2c\r\n"
        b"content-type: application/json\r\npad: %b\r\ncontent-length: %d\r\n\r\n%b" % (b"p" * pad, len(EATEN), EATEN)
    )


@pytest.mark.parametrize("proxy", [go_proxy, nginx_proxy], ids=["Go", "nginx"])
async def test_the_next_user_gets_his_own_answer(
    proxy: Callable[[Path, int], contextlib.AbstractAsyncContextManager[int]], tmp_path: Path
) -> None:
    wrong = []
    with run_gateway(tmp_path, "m=grpc://127.0.0.1:1") as gateway:
        async with relay(urlsplit(gateway.url).port or 0) as target, proxy(tmp_path, target) as port:
            for pad in range(1260, 1370):
                answer = await ask(port, attack(pad))
                assert answer.startswith(b"HTTP/1.1 400 "), "the body arrives, and is not JSON"
                victim = (
                    b"GET /health HTTP/1.1\r\nhost: x\r\nx-request-id: victim-%d\r\nconnection: close\r\n\r\n" % pad
                )
                answer = await ask(port, victim)
                if b"x-request-id: victim-%d" % pad not in answer.lower() or b"200 OK" not in answer:
                    wrong.append((pad, answer[:200]))
        assert wrong == []
        assert "SMUGGLED" not in gateway.log.read_text()
