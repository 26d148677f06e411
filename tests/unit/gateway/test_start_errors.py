"""A gateway that cannot start names the setting or the file that is wrong, without a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_gateway import __main__
from omni_gateway.__main__ import main


@pytest.fixture(autouse=True)
def process_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps main() from changing the logging and the allocator of the test's process."""
    monkeypatch.setattr(__main__, "configure_logging", lambda *_: None)
    monkeypatch.setattr(__main__, "set_malloc_options", lambda _: None)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("keysFile: none.yaml", "error: keysFile none.yaml: [Errno 2] No such file or directory: 'none.yaml'"),
        ("keysFile: keys.yaml", "error: keysFile keys.yaml: keys.0.sha256: Field required"),
    ],
)
def test_a_wrong_key_file_is_named(
    config: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gateway.yaml").write_text(config)
    Path("keys.yaml").write_text("keys: [{name: a}]")
    assert main(["--endpoint", "a=grpc://127.0.0.1:1", "--config", "gateway.yaml", "--port", "0"]) == 2
    assert capsys.readouterr().err == f"{says}\n"


def test_wrong_tls_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--endpoint", "a=grpc://127.0.0.1:1", "--tls-dir", str(tmp_path), "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path}/tls.crt and tls.key cannot be used as certificate and key: ")


def test_an_unknown_protocol_for_traces_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    assert main(["--endpoint", "a=grpc://127.0.0.1:1", "--port", "0"]) == 2
    assert capsys.readouterr().err == (
        "error: OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'; use grpc (the default) or http/protobuf\n"
    )


def test_two_endpoints_need_two_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise both would be served as "/a", and a request for "a" would get 404."""
    with pytest.raises(SystemExit):
        main(["--endpoint", "a=grpc://127.0.0.1:1", "--endpoint", "a=grpc://127.0.0.1:2"])
    assert "two --endpoint have the same NAME" in capsys.readouterr().err
