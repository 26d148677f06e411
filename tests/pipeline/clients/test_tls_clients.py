"""TLS as clients see it: grpcurl and `omnipipe` with a stage server whose certificate is renewed while it runs."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from omni_proto.client import ClientTls, OmniClient
from omni_proto.stage_config import ServerTls, StageConfig
from support.peers.certificates import DAY, Authority, MountedSecret, tls_files
from support.processes.pipelines import OMNIPIPE
from support.processes.polling import PATIENCE_S, wait_until
from support.processes.stage_processes import CHEAP, StageProcess, chain_configs, pick_chain_ports

pytestmark = pytest.mark.pipeline

SERVICE = "omni_proto.stage.v1.StageService"
EXPIRY = "omni_stage_tls_certificate_expiry_timestamp_seconds"
REJECTED = "omni_stage_tls_certificate_rejected"
HOST = "web.models.svc"
"""The name in the stage's certificate. Clients connect to 127.0.0.1 and expect this name."""


@dataclass
class Entry:
    """A stage server with TLS, in its own process."""

    process: StageProcess
    secret: MountedSecret
    folder: Path

    @property
    def port(self) -> int:
        return self.process.ports["thinker"]["grpc"]

    def trust(self, authority: Authority) -> list[str]:
        path = self.folder / "trusted.crt"
        path.write_bytes(authority.certificate)
        return ["-cacert", str(path)]

    def curl(self, *flags: str, verb: str = f"{SERVICE}/GetStage") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [grpcurl(), "-max-time", "120", "-connect-timeout", "10", *flags, f"127.0.0.1:{self.port}", verb],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )

    def until(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, why=lambda: self.process.read_log()[-3000:])


def grpcurl() -> str:
    return os.environ.get("GRPCURL", "grpcurl")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("cert-manager")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Entry]]:
    started: list[StageProcess] = []

    def run(files: dict[str, bytes], **tls: str) -> Entry:
        secret = MountedSecret(tmp_path / "secret", files)
        settings = {"directory": str(secret.directory), **tls}
        config = StageConfig.model_validate(
            {
                "pipeline": "web",
                "stage": "thinker",
                "component": "test/stage",
                "model": {"path": "/model"},
                "outputs": ["Text"],
                "listen": {"host": "127.0.0.1", "grpcPort": 0, "healthPort": 0, "metricsPort": 0, "tls": settings},
            }
        )
        started.append(StageProcess([config], tmp_path, CHEAP).start())
        return Entry(started[-1], secret, tmp_path)

    yield run
    for process in started:
        process.kill()


def test_grpcurl_over_tls_and_who_is_refused(start: Callable[..., Entry], authority: Authority) -> None:
    entry = start(tls_files(authority.issue(hosts=[HOST])))
    trusted = [*entry.trust(authority), "-authority", HOST]
    answered = entry.curl(*trusted)
    assert answered.returncode == 0, answered.stderr
    assert json.loads(answered.stdout)["stage"] == "thinker"
    assert SERVICE in entry.curl(*trusted, verb="list").stdout.split()
    refused = {
        "plaintext": entry.curl("-plaintext"),
        "public CAs": entry.curl("-authority", HOST),
        "another name": entry.curl(*entry.trust(authority), "-authority", "other.models.svc"),
        "another CA": entry.curl(*entry.trust(Authority("other")), "-authority", HOST),
    }
    assert {name: done.returncode != 0 for name, done in refused.items()} == dict.fromkeys(refused, True)
    assert "certificate" in refused["another CA"].stderr
    assert entry.process.health("thinker", "readiness") == "SERVING"


def test_grpcurl_with_a_certificate_of_its_own(start: Callable[..., Entry], authority: Authority) -> None:
    entry = start(tls_files(authority.issue(hosts=[HOST]), authority.certificate), clientCertificates="Required")
    own = authority.issue("grpcurl")
    (entry.folder / "own.crt").write_bytes(own.certificate)
    (entry.folder / "own.key").write_bytes(own.key)
    trusted = [*entry.trust(authority), "-authority", HOST]
    shown = ["-cert", str(entry.folder / "own.crt"), "-key", str(entry.folder / "own.key")]
    assert entry.curl(*trusted, *shown).returncode == 0
    assert entry.curl(*trusted).returncode != 0


def test_renewal_while_a_stream_is_open(start: Callable[..., Entry], authority: Authority) -> None:
    """An open stream continues, and new connections see the renewed certificate, even one of another CA.

    A broken certificate is not used.
    """
    entry = start(tls_files(authority.issue(hosts=[HOST])))
    trusted = [*entry.trust(authority), "-authority", HOST]
    slow = {"thinker": {"maxTokens": 4000, "topK": 250}}
    request = json.dumps({"start": {"text": "hello", "sampling": slow}}) + json.dumps({"end": {}})
    command = [grpcurl(), *trusted, "-d", "@", f"127.0.0.1:{entry.port}", f"{SERVICE}/Generate"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stream,
        ExitStack() as stack,
    ):
        assert stream.stdin
        assert stream.stdout
        stream.stdin.write(request)
        stream.stdin.close()
        words: list[str] = []

        def read(lines: Iterable[str]) -> None:
            for line in lines:
                words.extend([line] if '"text":' in line else [])

        reader = threading.Thread(target=read, args=(stream.stdout,))
        reader.start()
        stack.callback(reader.join)
        stack.callback(stream.kill)
        wait_until(lambda: words)
        new = Authority("cert-manager, next year")
        renewed = new.issue(hosts=[HOST], lasts=9 * DAY)
        entry.secret.write(tls_files(renewed))
        entry.until(lambda: entry.process.metric("thinker", EXPIRY) == renewed.not_after.timestamp())
        assert entry.curl(*trusted).returncode != 0, "the old CA did not sign what new connections see"
        assert entry.curl(*entry.trust(new), "-authority", HOST).returncode == 0
        entry.secret.write({"tls.crt": b"", "tls.key": renewed.key})
        entry.until(lambda: entry.process.metric("thinker", REJECTED) == 1)
        assert entry.curl(*entry.trust(new), "-authority", HOST).returncode == 0
        heard = len(words)
        wait_until(lambda: len(words) > heard + 2, why=lambda: "the stream must stay open")
    entry.secret.write(tls_files(renewed))
    entry.until(lambda: entry.process.metric("thinker", REJECTED) == 0)


def test_omnipipe_generate_over_tls(start: Callable[..., Entry], authority: Authority) -> None:
    entry = start(tls_files(authority.issue(hosts=[HOST])))
    trusted = entry.trust(authority)[1]
    command = [OMNIPIPE, "generate", "--text", "hello", "--raw", "--timeout", "120"]

    def generate(*flags: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *flags], capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)

    url = f"grpcs://127.0.0.1:{entry.port}"
    done = generate("--endpoint", url, "--ca", trusted, "--server-name", HOST)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("www")
    for flags, words in (
        (["--endpoint", url, "--ca", trusted], "has other names"),
        (["--endpoint", url, "--server-name", HOST], "CA is not one that this client trusts"),
        (["--endpoint", f"127.0.0.1:{entry.port}"], "it may require TLS"),
        (["--endpoint", url, "--ca", "/nowhere"], "tls.ca: cannot read /nowhere"),
        (["--endpoint", url, "--cert", trusted], "tls.key is missing"),
        (["--endpoint", f"grpc://127.0.0.1:{entry.port}", "--tls"], "is plaintext; for TLS begin it with grpcs://"),
    ):
        refused = generate(*flags)
        assert (refused.returncode, words in refused.stderr) == (1, True), refused.stderr


def test_stages_below_the_entry_stay_plaintext(tmp_path: Path, authority: Authority) -> None:
    secret = MountedSecret(tmp_path / "secret", tls_files(authority.issue(hosts=[HOST])))
    configs = chain_configs(pick_chain_ports())
    entry = configs["thinker"]
    listen = entry.listen.model_copy(update={"tls": ServerTls(directory=str(secret.directory))})
    configs["thinker"] = entry.model_copy(update={"listen": listen})
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    with StageProcess(list(configs.values()), tmp_path, CHEAP).start() as process:
        target = f"grpcs://127.0.0.1:{process.ports['thinker']['grpc']}"
        with OmniClient(target, tls=ClientTls(ca=tmp_path / "ca.crt", server_name=HOST)) as client:
            answer = client.run(raw_text="hello", timeout=PATIENCE_S)
        assert answer.text
        assert answer.audio
        with OmniClient(f"grpc://127.0.0.1:{process.ports['talker']['grpc']}") as client:
            assert client.get_stage().stage == "talker"
