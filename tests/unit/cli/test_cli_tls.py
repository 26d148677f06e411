"""`omnipipe run --tls-dir DIR` serves TLS at the entry stage only, with DIR's files in place of a Secret.

Without --tls-dir it serves plaintext, even if the pipeline asks for TLS, and its endpoint lacks the scheme grpcs://.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from omni_cli.local.pipeline import LocalOptions, LocalPipeline, compile_local, gateway_settings
from omni_cli.local.processes import StageAddress
from omni_cli.main import app
from omni_proto.pipeline import OmniPipeline, load_pipeline
from omni_proto.stage_config import ClientCertificates

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
PORTS = {"thinker": 1, "talker": 2, "token2wav": 3}
PLAIN, TLS = load_pipeline(SAMPLES / "tiny-omni.yaml"), load_pipeline(SAMPLES / "tiny-omni-tls.yaml")
_ASKED = TLS.spec.entry.tls.model_copy(update={"client_certificates": ClientCertificates.REQUIRED})  # type: ignore[union-attr]
MUTUAL = TLS.model_copy(
    update={"spec": TLS.spec.model_copy(update={"entry": TLS.spec.entry.model_copy(update={"tls": _ASKED})})}
)


@pytest.mark.parametrize(
    ("pipeline", "directory", "clients"),
    [
        (PLAIN, None, None),
        (TLS, None, None),
        (PLAIN, "/tls", "Ignored"),
        (TLS, "/tls", "Ignored"),
        (MUTUAL, "/tls", "Required"),
    ],
    ids=["plaintext", "asked for, no directory", "directory alone", "both", "with client certificates"],
)
def test_which_stage_serves_tls(pipeline: OmniPipeline, directory: str | None, clients: str | None) -> None:
    configs = compile_local(pipeline, "/model", PORTS, Path(directory) if directory else None)
    entry, *others = [config.listen.tls for config in configs]
    assert others == [None, None]
    assert (entry and entry.client_certificates.value) == clients
    assert (entry and entry.directory) == directory


@pytest.mark.parametrize(("directory", "scheme"), [(None, ""), ("/tls", "grpcs://")], ids=["plaintext", "TLS"])
def test_the_endpoint_scheme_says_whether_it_has_tls(directory: str | None, scheme: str) -> None:
    """The endpoint has the scheme grpcs:// if the entry stage serves TLS."""
    options = LocalOptions(model_path="/model", tls_dir=Path(directory) if directory else None)
    with LocalPipeline(TLS, options) as running:
        running.addresses["thinker"] = StageAddress(grpc=7, health=8, metrics=9)
        assert running.endpoint == f"{scheme}127.0.0.1:7"


def test_the_gateway_trusts_the_directorys_ca_if_there_is_one(tmp_path: Path) -> None:
    """Without ca.crt, the public CAs are trusted."""
    options = LocalOptions(model_path="/model", tls_dir=tmp_path)
    assert "entryCa" not in yaml.safe_load(gateway_settings(TLS, options))
    (tmp_path / "ca.crt").touch()
    assert yaml.safe_load(gateway_settings(TLS, options))["entryCa"] == str(tmp_path / "ca.crt")


@pytest.mark.needs_vllm
def test_a_gateway_that_could_not_call_the_entry_is_not_started(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    asked = "tls: {secretName: tiny-omni-tls, clientCertificates: Required}"
    file.write_text((SAMPLES / "tiny-omni-tls.yaml").read_text().replace("tls: {secretName: tiny-omni-tls}", asked))
    ran = CliRunner().invoke(app, ["run", str(file), "--tls-dir", str(tmp_path), "--http", "0"])
    assert ran.exit_code == 1
    assert "clientCertificates is Required, and the gateway of --http has no client certificate" in ran.stderr


@pytest.mark.parametrize("name", ["--tls", "--ca", "--cert", "--key", "--server-name"])
def test_generate_lists_the_options(name: str) -> None:
    # rich cuts the table of options to the terminal's width.
    said = CliRunner().invoke(app, ["generate", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    assert name in said.stdout
