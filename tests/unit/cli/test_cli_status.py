"""`omnipipe status`: what it draws, and what its Kubernetes client reads from a local HTTP server."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import config
from kubernetes.config import incluster_config
from rich.console import Console
from typer.testing import CliRunner

from omni_cli.cluster import access
from omni_cli.cluster.access import ClusterError
from omni_cli.commands.status import changes, draw_status, follow
from omni_cli.main import app
from support.operator.operator_pipelines import make_stages

Json = dict[str, Any]


GOOD_KUBECONFIG = """
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "https://127.0.0.1:1", certificate-authority-data: YWJj}}]
users: [{name: u, user: {token: t}}]
"""


def make_document(**status: Any) -> Json:
    return {
        "apiVersion": "omnipipeline.io/v1alpha1",
        "kind": "OmniPipeline",
        "metadata": {"name": "demo", "namespace": "models", "generation": 2, "resourceVersion": "7"},
        "spec": {"model": {"uri": "file:///m"}, "stages": make_stages()},
        **({"status": {"observedGeneration": 2, **status}} if status else {}),
    }


def condition(kind: str, status: str, reason: str, message: str = "") -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def entry(name: str, ready: int, wanted: int = 1, message: str = "", revision: str = "1a2b3c4") -> Json:
    return {"name": name, "replicas": wanted, "readyReplicas": ready, "revision": revision, "message": message}


GOOD = [
    condition("Ready", "True", "AllStagesReady", "all 3 stages serve"),
    condition("Progressing", "False", "RolloutComplete", "revision 1a2b3c4 is rolled out"),
    condition("Degraded", "False", "AsExpected", "nothing failed"),
]


def draw(document: Json, width: int = 110) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(draw_status(document))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def test_status_of_a_ready_chain() -> None:
    document = make_document(
        conditions=GOOD,
        stages=[entry("thinker", 2, 2), entry("talker", 1), entry("token2wav", 1)],
        url="grpc://demo.models.svc:50051",
    )
    assert draw(document) == (
        "demo  namespace models  grpc://demo.models.svc:50051\n"
        "Ready        True   AllStagesReady   all 3 stages serve\n"
        "Progressing  False  RolloutComplete  revision 1a2b3c4 is rolled out\n"
        "Degraded     False  AsExpected       nothing failed\n"
        "● thinker  2/2 ready  revision 1a2b3c4  qwen2_5_omni/thinker  returns Text\n"
        "└── Stream -> ● talker  1/1 ready  revision 1a2b3c4  qwen2_5_omni/talker\n"
        "    └── Full -> ● token2wav  1/1 ready  revision 1a2b3c4  qwen2_5_omni/token2wav  returns Audio"
    )


def test_a_stage_shows_its_own_model() -> None:
    stages = [entry("thinker", 1), entry("talker", 1) | {"model": "hf://org/talker@v2"}]
    lines = draw(make_document(conditions=GOOD, stages=stages)).splitlines()
    assert "hf://" not in lines[-3]
    assert lines[-2].endswith("● talker  1/1 ready  revision 1a2b3c4  hf://org/talker@v2  qwen2_5_omni/talker")


def test_a_stage_that_fails_says_why_in_its_place() -> None:
    stages = [entry("thinker", 1), entry("talker", 0, message="image x cannot be pulled; check its name")]
    text = draw(make_document(conditions=GOOD, stages=stages))
    assert "talker  0/1 ready" in text
    assert "image x cannot be pulled; check its name" in text.splitlines()[-2]
    assert "token2wav  not there yet" in text.splitlines()[-1]


def test_a_fork_and_a_suspended_stage() -> None:
    document = make_document(conditions=GOOD, stages=[entry("thinker", 0, 0)])
    document["spec"]["stages"][2]["inputs"] = [{"from": "thinker"}]
    lines = draw(document).splitlines()
    assert lines[-3].startswith("● thinker  0/0 ready")
    assert lines[-2].startswith("├── Stream -> ● talker")
    assert lines[-1].startswith("└── Full -> ● token2wav")


def test_stages_of_an_older_spec_that_serve_meanwhile() -> None:
    """During a rollout, stages of the older spec that still serve are listed separately."""
    text = draw(make_document(conditions=GOOD, stages=[entry("brain", 1)]))
    assert text.splitlines()[-2:] == ["still serving, from an older spec:", "└── ● brain  1/1 ready  revision 1a2b3c4"]


def test_status_of_a_pipeline_without_one() -> None:
    text = draw(make_document())
    assert "no status yet: is the operator running?" in text
    assert "thinker  not there yet" in text


def test_status_of_an_older_generation() -> None:
    assert "has not seen the last edit" in draw(make_document(conditions=GOOD, observedGeneration=1))


class TestWatch:
    """With --watch, a pipeline is drawn again only after it has changed."""

    def read(self, *answers: str | Exception) -> list[str]:
        script = iter(answers)

        def read() -> Json:
            answer = next(script)
            if isinstance(answer, Exception):
                raise answer
            return {"metadata": {"resourceVersion": answer}}

        seen: list[str] = []
        try:
            for document in changes(read, lambda: None):
                seen.append(document["metadata"]["resourceVersion"])
        except ClusterError as error:
            seen.append(str(error))
        return seen

    def test_a_watch_yields_only_changes(self) -> None:
        assert self.read("1", "1", "2", "2", ClusterError("no pipeline 'x'", 404)) == ["1", "2", "no pipeline 'x'"]

    def test_a_watch_survives_an_outage_of_the_api_server(self) -> None:
        away = ClusterError("the API server does not answer")
        assert self.read("1", away, away, "1", "2", ClusterError("no pipeline", 404)) == ["1", "2", "no pipeline"]

    def test_a_watch_fails_if_its_first_read_fails(self) -> None:
        assert self.read(ClusterError("the API server does not answer")) == ["the API server does not answer"]

    @pytest.mark.parametrize("terminal", [True, False])
    def test_each_change_is_drawn(self, terminal: bool) -> None:
        out = io.StringIO()
        first, second = make_document(conditions=GOOD), make_document(conditions=GOOD, stages=[entry("thinker", 1)])
        follow(iter([first, second]), Console(file=out, width=110, force_terminal=terminal, highlight=False))
        assert "thinker" in out.getvalue()
        assert "not there yet" in out.getvalue()
        assert "1/1 ready" in out.getvalue()


class Api(BaseHTTPRequestHandler):
    """Answers like an API server that holds one pipeline, and has no CRD in the eyes of the namespace `bare`."""

    def do_GET(self) -> None:
        known = self.path == "/apis/omnipipeline.io/v1alpha1/namespaces/models/omnipipelines/demo"
        code = 200 if known else 403 if "/forbidden/" in self.path else 404
        missing = f'omnipipelines.omnipipeline.io "{self.path.rpartition("/")[2]}" not found'
        status = {"kind": "Status", "code": code} | ({"message": missing} if code == 404 else {})
        body = json.dumps(make_document(conditions=GOOD) if known else status).encode()
        body = b"404 page not found" if "/bare/" in self.path else body
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Writes nothing to stderr."""


@pytest.fixture
def api() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def write_kubeconfig(path: Path, port: int, namespace: str | None = "models") -> Path:
    context = {"cluster": "c", "user": "u", **({"namespace": namespace} if namespace else {})}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "contexts": [{"name": "x", "context": context}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def invoke(*arguments: str) -> tuple[int, str, str]:
    runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "KUBECONFIG": "/nonexistent"})
    result = runner.invoke(app, ["status", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("by_flag", [True, False])
def test_reads_from_the_cluster(api: int, tmp_path: Path, by_flag: bool) -> None:
    file = write_kubeconfig(tmp_path / "config", api, None if by_flag else "models")
    code, out, err = invoke("demo", "--kubeconfig", str(file), *(["-n", "models"] if by_flag else []))
    assert (code, err) == (0, "")
    assert "AllStagesReady" in out


def test_a_context_chooses_cluster_and_namespace(api: int, tmp_path: Path) -> None:
    file = write_kubeconfig(tmp_path / "config", api)
    content = yaml.safe_load(file.read_text())
    content["contexts"].append({"name": "other", "context": {"cluster": "away", "user": "u"}})
    content["clusters"].append({"name": "away", "cluster": {"server": "http://127.0.0.1:1"}})
    file.write_text(yaml.safe_dump(content | {"current-context": "other"}))
    assert "the API server http://127.0.0.1:1 does not" in invoke("demo", "--kubeconfig", str(file))[2]
    code, out, _ = invoke("demo", "--kubeconfig", str(file), "--context", "x")
    assert code == 0
    assert "AllStagesReady" in out
    code, _, err = invoke("demo", "--kubeconfig", str(file), "--context", "none")
    assert code == 1
    assert "name none in" in err


def test_a_credential_plugin_that_is_missing_is_an_error(api: int, tmp_path: Path) -> None:
    """The client would ask without credentials, and log to stderr."""
    file = write_kubeconfig(tmp_path / "config", api)
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin", "interactiveMode": "Never"}
    content = yaml.safe_load(file.read_text()) | {"users": [{"name": "u", "user": {"exec": plugin}}]}
    file.write_text(yaml.safe_dump(content))
    code, _, err = invoke("demo", "--kubeconfig", str(file))
    assert code == 1
    assert err.startswith("error: the kubeconfig's credential plugin fails: ")
    assert "no-such-plugin" in err
    assert err.count("\n") == 1


def test_in_a_pod_its_own_credentials_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("token", "namespace"):
        (tmp_path / name).write_text("models")
    (tmp_path / "ca.crt").write_text("a certificate")
    monkeypatch.setattr(config, "KUBE_CONFIG_DEFAULT_LOCATION", f"{tmp_path}/none{os.pathsep}{tmp_path}/missing")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(access, "_POD_NAMESPACE", tmp_path / "namespace")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    cluster = access.connect(None, None)
    assert (cluster.client.configuration.host, cluster.namespace) == ("https://10.0.0.1:443", "models")


class Page(BaseHTTPRequestHandler):
    """Answers with a page, or ends in the middle of its answer."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100" if "/cut/" in self.path else "6")
        self.end_headers()
        self.wfile.write(b"<html>")

    log_message = Api.log_message


@pytest.mark.parametrize(("namespace", "told"), [("page", "answers no JSON"), ("cut", "does not answer: ")])
def test_what_is_no_api_server_is_an_error(namespace: str, told: str, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        file = write_kubeconfig(tmp_path / "config", server.server_port, namespace)
        code, _, err = invoke("demo", "--kubeconfig", str(file))
        server.shutdown()
    assert code == 1
    assert told in err


def test_api_errors_name_the_remedy(api: int, tmp_path: Path) -> None:
    file = str(write_kubeconfig(tmp_path / "config", api))
    code, _, err = invoke("other", "--kubeconfig", file)
    assert code == 1
    assert err.startswith("error: no pipeline 'other' in namespace 'models'; omnipipe list -A")
    code, _, err = invoke("demo", "-n", "forbidden", "--kubeconfig", file)
    assert (code, err) == (1, "error: the API server answers 403 (Forbidden)\n")
    code, _, err = invoke("demo", "-n", "bare", "--kubeconfig", file)
    assert (code, err) == (1, "error: the cluster has no OmniPipeline CRD; omnipipe doctor says how to install it\n")
    code, _, err = invoke("demo", "--kubeconfig", "/nonexistent")
    assert code == 1
    assert "--kubeconfig" in err
    code, _, err = invoke("gone", "--watch", "--kubeconfig", file)
    assert code == 1
    assert "no pipeline 'gone'" in err


def test_an_unreachable_api_server_is_an_error(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        port = server.server_port
    code, _, err = invoke("demo", "--kubeconfig", str(write_kubeconfig(tmp_path / "config", port)))
    assert (code, err) == (1, f"error: the API server http://127.0.0.1:{port} does not answer: Connection refused\n")


@pytest.mark.parametrize(
    "text",
    ["contexts: [", "[]", "clusters: 5", "\0", GOOD_KUBECONFIG.replace("YWJj", "abc")],
    ids=["not YAML", "a list", "a number", "no text", "not base64"],
)
def test_a_damaged_kubeconfig_is_an_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    result = CliRunner().invoke(app, ["status", "demo", "--kubeconfig", str(file)])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cannot find a cluster: the kubeconfig is damaged: ")
    assert "give a file by --kubeconfig or KUBECONFIG" in result.stderr


def test_a_name_that_another_pipeline_has() -> None:
    document = make_document(conditions=GOOD, stages=[entry("thinker", 2, 2)], url="grpc://demo.models.svc:50051")
    document["status"]["names"] = [
        {"name": "demo", "since": "2026-11-27T09:00:00Z"},
        {"name": "tts-1", "message": "belongs to pipeline a/b, which had it first"},
    ]
    assert "the name tts-1 belongs to pipeline a/b, which had it first\n" in draw(document)
    assert "the name demo" not in draw(document)
