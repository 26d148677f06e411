"""etcd and kube-apiserver as child processes on loopback ports: a real API server in a few seconds, without root.

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
from support.controlplane.binaries import find_binaries
from support.controlplane.server.api import Api, ApiError, Manifest, eventually
from support.controlplane.server.pki import Pki
from support.processes.polling import PATIENCE_S
from support.processes.process import ChildProcess

# To save CPU on a machine of two cores: no profiling, no audit, no reconciling of the `kubernetes` endpoints.
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
    # For servers behind the API server, such as those of metrics: how it tells them who calls.
    "--requestheader-allowed-names=front-proxy",
    "--requestheader-username-headers=X-Remote-User",
    "--requestheader-group-headers=X-Remote-Group",
    "--requestheader-extra-headers-prefix=X-Remote-Extra-",
)


class ApiServer:
    """A running etcd and kube-apiserver, which write only below `directory`.

    Pods can be created, but no controller acts on them: see ControlPlane. `stop`, `kill`, `start` and `restart` affect
    only the API server; etcd keeps the objects.
    """

    # Without a controller-manager there is no default ServiceAccount, which this plugin would require for pods.
    disabled_admission: tuple[str, ...] = ("ServiceAccount",)
    # OpenShift enables this plugin. It checks who may set blockOwnerDeletion in an ownerReference.
    enabled_admission: tuple[str, ...] = ("OwnerReferencesPermissionEnforcement",)

    def __init__(self, directory: Path, *, crds: Sequence[Path] = ()) -> None:
        self.directory = directory
        self._crds = tuple(crds)
        self.binaries = find_binaries(*self.programs())
        self._children: list[ChildProcess] = []
        self._users: dict[tuple[str, ...], Path] = {}

    @classmethod
    def programs(cls) -> tuple[str, ...]:
        """Returns the names of the programs that this class runs, as find_binaries knows them."""
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
        """Kills every process, the last started first. None needs a graceful end."""
        for child in reversed(self._children):
            child.kill()

    def require_running(self) -> None:
        """Raises RuntimeError if a program has ended. The message has the end of that program's log."""
        for child in self._children:
            if not child.running:
                raise RuntimeError(f"{child.name} ended with {child.returncode}:\n{child.log_tail()}")

    @property
    def kubeconfig(self) -> Path:
        """Returns the path of the administrator's kubeconfig (system:masters)."""
        return self.kubeconfig_for("admin", groups=("system:masters",))

    @property
    def admin(self) -> Api:
        """Returns the administrator's client."""
        return self._admin

    def kubeconfig_for(self, user: str, groups: Sequence[str] = (), *, server: str | None = None) -> Path:
        """Returns the kubeconfig of a user with a client certificate, who has the rights that RBAC objects grant."""
        key = (user, *groups, server or "")
        if key not in self._users:
            folder = self.directory / "users" / f"{len(self._users)}-{user.replace(':', '_')}"
            folder.mkdir(parents=True)
            certificate, private_key = self.pki.client_pair(user, groups)
            (folder / "client.crt").write_bytes(certificate)
            (folder / "client.key").write_bytes(private_key)
            (folder / "client.key").chmod(0o600)
            credentials = {"client-certificate": str(folder / "client.crt"), "client-key": str(folder / "client.key")}
            self._users[key] = self._write_kubeconfig(folder / "kubeconfig", credentials, server)
        return self._users[key]

    def kubeconfig_for_service_account(self, namespace: str, name: str, *, server: str | None = None) -> Path:
        """Returns a kubeconfig with a ServiceAccount's token. Creates the ServiceAccount if needed.

        `server` replaces the API server's address, for example by a FaultProxy's url. A token passes through a proxy; a
        client certificate does not.
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
        timeout_s: float = PATIENCE_S,
    ) -> subprocess.CompletedProcess[str]:
        """Runs the real kubectl as administrator. Returns the ended process. `stdin` may be a manifest.

        Raises:
            AssertionError: kubectl failed and `check` is set. The message has its stderr.
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
        """Makes a namespace. Returns the administrator's client in it."""
        metadata = {"name": name, "labels": dict(labels or {})}
        self.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        return self.admin.in_namespace(name)

    def apply_crds(self, *files: Path) -> None:
        """Applies CustomResourceDefinitions (YAML files) and waits until the API server serves them."""
        for file in files:
            for document in yaml.safe_load_all(file.read_text()):
                self.admin.apply(document)
                self.wait_served(document["metadata"]["name"])

    def wait_served(self, crd: str) -> None:
        """Waits until the API server serves the objects of a CustomResourceDefinition that has been applied."""
        eventually(lambda: self._serves(crd), why=f"{crd} is served")

    def publish_api(self, name: str, namespace: str, port: int) -> None:
        """Makes the API server send requests for an API, VERSION.GROUP, to a program on its own machine.

        namespace: for the Service that the API server needs for it.
        """
        version, _, group = name.partition(".")
        service = {"name": name.replace(".", "-"), "namespace": namespace}
        spec = {"type": "ExternalName", "externalName": "localhost"}
        self.admin.apply({"apiVersion": "v1", "kind": "Service", "metadata": service, "spec": spec})
        api = {"group": group, "version": version, "service": {**service, "port": port}, "insecureSkipTLSVerify": True}
        api |= {"groupPriorityMinimum": 100, "versionPriority": 100}
        metadata = {"name": name}
        self.admin.apply(
            {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": metadata, "spec": api}
        )

    # Faults of the API server

    def start(self) -> None:
        """Starts the API server and waits until it is ready."""
        self._api_server.start()
        self._api_server.wait_until(self._ready)

    def stop(self) -> None:
        """Stops the API server gracefully, as a rolling update does: it closes its watches."""
        self._api_server.stop()

    def kill(self) -> None:
        """Kills the API server (SIGKILL)."""
        self._api_server.kill()

    def restart(self, *, kill: bool = False) -> None:
        """Stops or kills the API server, and starts it again at the same address."""
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

    def _child(self, name: str, *arguments: str | Path, prefix: Sequence[str] = ()) -> ChildProcess:
        # There is enough memory, and running Go's garbage collector less often saves a tenth of the CPU time.
        environment = {"GOGC": "400", **os.environ}
        command = [*prefix, self.binaries[name], *arguments]
        child = ChildProcess(name, command, self.directory / f"{name}.log", environment)
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
        for name, content in zip(("front-proxy.crt", "front-proxy.key"), pki.client_pair("front-proxy"), strict=True):
            (pki.directory / name).write_bytes(content)
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
            f"--requestheader-client-ca-file={pki.ca}",
            f"--proxy-client-cert-file={pki.directory / 'front-proxy.crt'}",
            f"--proxy-client-key-file={pki.directory / 'front-proxy.key'}",
            f"--service-account-key-file={pki.service_account_public_key}",
            f"--service-account-signing-key-file={pki.service_account_key}",
        ]

    def _ready(self) -> bool:
        try:
            return self.admin.call("GET", "/readyz", timeout_s=5)["text"] == "ok"
        except (ApiError, OSError, urllib3.exceptions.HTTPError):
            return False

    def _serves(self, crd: str) -> bool:
        found = self.admin.get("CustomResourceDefinition", crd)
        conditions = found.get("status", {}).get("conditions") or []
        if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
            return False
        # A CRD may be established shortly before its objects can be written.
        spec = found["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}?limit=1"
        try:
            self.admin.call("GET", path)
        except ApiError as error:
            if error.code != 404:
                raise
            return False
        return True

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
