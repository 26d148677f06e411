"""etcd and kube-apiserver as child processes on loopback ports: a real API in a few seconds, without root.

with ApiServer(directory, crds=[FILE]) as server:
    server.admin.create({...})
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import urllib3
import yaml

from omni_cli.local.ports import pick_ports
from support.controlplane.api import Api, ApiError, Manifest, eventually
from support.controlplane.binaries import find_binaries
from support.controlplane.pki import Pki
from support.controlplane.process import ChildProcess

# Two cores serve everything here: no profiling, no audit, no reconciling of the `kubernetes` endpoints.
_API_SERVER_FLAGS = (
    "--bind-address=127.0.0.1",
    "--advertise-address=127.0.0.1",
    "--service-cluster-ip-range=10.96.0.0/16",
    "--service-account-issuer=https://kubernetes.default.svc",
    "--authorization-mode=RBAC",
    "--allow-privileged=true",
    "--profiling=false",
    "--endpoint-reconciler-type=none",
    "--shutdown-delay-duration=0s",
    "--event-ttl=1h",
)


class ApiServer:
    """A running etcd and kube-apiserver; everything it writes lies below `directory`.

    Pods can be created but nothing acts on them: see ControlPlane. `stop`, `kill`, `start` and `restart` act on the API
    server alone; etcd keeps the objects.
    """

    # Without a controller-manager nobody makes the default ServiceAccount that pods would need.
    disabled_admission: tuple[str, ...] = ("ServiceAccount",)
    # Who may block an owner's deletion by an ownerReference is checked in OpenShift, and so here.
    enabled_admission: tuple[str, ...] = ("OwnerReferencesPermissionEnforcement",)

    def __init__(self, directory: Path, *, crds: Sequence[Path] = ()) -> None:
        self.directory = directory
        self._crds = tuple(crds)
        self.binaries = find_binaries(*self.programs())
        self._children: list[ChildProcess] = []
        self._users: dict[tuple[str, ...], Path] = {}

    @classmethod
    def programs(cls) -> tuple[str, ...]:
        """Returns the programs that it runs, as find_binaries names them."""
        return ("etcd", "kube-apiserver", "kubectl")

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process, the youngest first. Nothing here is worth a graceful end."""
        for child in reversed(self._children):
            child.kill()

    def require_running(self) -> None:
        """Raises RuntimeError with the end of its log if a program has ended that should run."""
        for child in self._children:
            if not child.running:
                raise RuntimeError(f"{child.name} ended with {child.returncode}:\n{child.log_tail()}")

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the administrator (system:masters)."""
        return self.kubeconfig_for("admin", groups=("system:masters",))

    @property
    def admin(self) -> Api:
        """Client of the administrator."""
        return self._admin

    def kubeconfig_for(self, user: str, groups: Sequence[str] = (), *, server: str | None = None) -> Path:
        """Kubeconfig of a user with a certificate; what it may do is up to the test's RBAC objects."""
        key = (user, *groups, server or "")
        if key not in self._users:
            folder = self.directory / "users" / f"{len(self._users)}-{user.replace(':', '_')}"
            folder.mkdir(parents=True)
            certificate, private_key = self.pki.client_pair(user, groups)
            (folder / "client.crt").write_bytes(certificate)
            (folder / "client.key").write_bytes(private_key)
            (folder / "client.key").chmod(0o600)
            credentials = {
                "client-certificate": str(folder / "client.crt"),
                "client-key": str(folder / "client.key"),
            }
            self._users[key] = self._write_kubeconfig(folder / "kubeconfig", credentials, server)
        return self._users[key]

    def kubeconfig_for_service_account(self, namespace: str, name: str, *, server: str | None = None) -> Path:
        """Kubeconfig with a token of a ServiceAccount, made if it is not there.

        `server` (such as a FaultProxy's url) replaces the API server's address: a token, unlike a certificate, passes
        through a proxy.
        """
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}
        self.admin.apply(account)
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 86400},
        }
        token = self.admin.call("POST", path, request)["status"]["token"]
        folder = self.directory / "users" / f"sa-{namespace}-{name}-{abs(hash(server)):x}"
        folder.mkdir(parents=True, exist_ok=True)
        return self._write_kubeconfig(folder / "kubeconfig", {"token": token}, server)

    def kubectl(
        self,
        *arguments: str | Path,
        stdin: str | Manifest | None = None,
        namespace: str | None = None,
        check: bool = True,
        timeout_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run the real kubectl as administrator; `stdin` may be a manifest.

        Raises:
            AssertionError: it failed (unless check=False); carries its stderr.
        """
        text = yaml.safe_dump(stdin) if isinstance(stdin, dict) else stdin
        command = [str(self.binaries["kubectl"]), "--kubeconfig", str(self.kubeconfig)]
        command += ["--namespace", namespace] if namespace else []
        result = subprocess.run(
            [*command, *map(str, arguments)],
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={"HOME": str(self.directory), "PATH": "/usr/bin:/bin"},
            check=False,
        )
        if check and result.returncode:
            raise AssertionError(f"kubectl {' '.join(map(str, arguments))} -> {result.returncode}:\n{result.stderr}")
        return result

    def create_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> Api:
        """Make a namespace; the administrator's client in it."""
        metadata = {"name": name, "labels": dict(labels or {})}
        self.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        return self.admin.in_namespace(name)

    def apply_crds(self, *files: Path) -> None:
        """Apply CustomResourceDefinitions (YAML files) and wait until the API server serves them."""
        for file in files:
            for document in yaml.safe_load_all(file.read_text()):
                self.admin.apply(document)
                eventually(lambda name=document["metadata"]["name"]: self._established(name), why="CRD established")

    # The API server alone: faults.

    def start(self) -> None:
        """Start the API server and wait until it is ready."""
        self._api_server.start()
        self._api_server.wait_until(self._ready)

    def stop(self) -> None:
        """End the API server as a rolling update does: it says goodbye to its watches."""
        self._api_server.stop()

    def kill(self) -> None:
        """SIGKILL the API server."""
        self._api_server.kill()

    def restart(self, *, kill: bool = False) -> None:
        """The API server goes and comes back at the same address."""
        (self.kill if kill else self.stop)()
        self.start()

    # Start-up

    def _start_all(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.pki = Pki(self.directory / "pki")
        client, peer, secure = pick_ports(3)
        self.url = f"https://127.0.0.1:{secure}"
        self._admin = Api(self.kubeconfig)
        etcd = self._child("etcd", *self._etcd_flags(client, peer))
        self._api_server = self._child("kube-apiserver", *self._api_server_flags(f"http://127.0.0.1:{client}", secure))
        etcd.start()
        self.start()
        self.apply_crds(*self._crds)

    def _child(self, name: str, *arguments: str | Path) -> ChildProcess:
        # There is memory enough: a garbage collector that runs more seldom spares a tenth of the CPU time.
        environment = {"GOGC": "400", **os.environ}
        child = ChildProcess(name, [self.binaries[name], *arguments], self.directory / f"{name}.log", environment)
        self._children.append(child)
        return child

    def _etcd_flags(self, client: int, peer: int) -> list[str]:
        peer_url, client_url = f"http://127.0.0.1:{peer}", f"http://127.0.0.1:{client}"
        return [
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _api_server_flags(self, etcd: str, port: int) -> list[str]:
        pki = self.pki
        disabled = ",".join(self.disabled_admission)
        return [
            *_API_SERVER_FLAGS,
            f"--enable-admission-plugins={','.join(self.enabled_admission)}",
            *([f"--disable-admission-plugins={disabled}"] if disabled else []),
            f"--etcd-servers={etcd}",
            f"--secure-port={port}",
            f"--cert-dir={pki.directory}",
            f"--tls-cert-file={pki.server_certificate}",
            f"--tls-private-key-file={pki.server_key}",
            f"--client-ca-file={pki.ca}",
            f"--service-account-key-file={pki.service_account_public_key}",
            f"--service-account-signing-key-file={pki.service_account_key}",
        ]

    def _ready(self) -> bool:
        try:
            return self.admin.call("GET", "/readyz", timeout_s=5)["text"] == "ok"
        except (ApiError, OSError, urllib3.exceptions.HTTPError):
            return False

    def _established(self, crd: str) -> bool:
        conditions = self.admin.get("CustomResourceDefinition", crd).get("status", {}).get("conditions") or []
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    def _write_kubeconfig(self, path: Path, credentials: Mapping[str, str], server: str | None) -> Path:
        cluster = {"server": server or self.url, "certificate-authority": str(self.pki.ca)}
        config: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "user", "user": dict(credentials)}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user", "namespace": "default"}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path
