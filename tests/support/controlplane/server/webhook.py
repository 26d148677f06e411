"""A mutating admission webhook: an HTTPS server that changes what clients write, as a policy engine does."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from support.controlplane.server.api import Api, Manifest, register
from support.controlplane.server.pki import Pki

register(
    "MutatingWebhookConfiguration", "admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", namespaced=False
)
Patch = list[dict[str, Any]]


class MutatingWebhook:
    """Changes the created and updated Deployments and Services of one namespace, while the context is open.

    `mutate` gets the object, and returns a JSON patch; empty if nothing is to be changed.
    """

    def __init__(self, api: Api, pki: Pki, mutate: Callable[[Manifest], Patch]) -> None:
        """api: an administrator's client in the namespace. pki: of the API server; its serving certificate is used."""
        self._api, self._pki = api, pki
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(mutate))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki.server_certificate, pki.server_key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.name = f"{api.namespace}-mutation"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        rule = {"operations": ["CREATE", "UPDATE"], "apiGroups": ["", "apps"], "apiVersions": ["v1"]}
        webhook = {
            "name": "mutation.example.com",
            "clientConfig": {
                "url": f"https://127.0.0.1:{self._server.server_port}/",
                "caBundle": base64.b64encode(self._pki.ca.read_bytes()).decode(),
            },
            "rules": [{**rule, "resources": ["deployments", "services"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._api.namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        self._api.create(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": self.name},
                "webhooks": [webhook],
            }
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._api.delete("MutatingWebhookConfiguration", self.name)
        self._server.shutdown()
        self._server.server_close()


def _handler(mutate: Callable[[Manifest], Patch]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer: dict[str, Any] = {"uid": review["request"]["uid"], "allowed": True}
            if patch := mutate(review["request"]["object"]):
                answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
            body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Writes nothing."""

    return Handler
