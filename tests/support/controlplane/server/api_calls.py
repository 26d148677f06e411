"""Calls to the API server, as the proxy in front of it sees them."""

from __future__ import annotations

from dataclasses import dataclass

# Resources whose writes do not count: an operator writes them whether or not it changes a pipeline or its children.
_BACKGROUND = frozenset({"leases", "events", "selfsubjectaccessreviews"})


@dataclass
class Call:
    """One request as the proxy received it. `status` is set when it is answered (0: not answered)."""

    method: str
    path: str
    watch: bool
    user_agent: str
    started: float
    status: int = 0
    fault: str = ""

    @property
    def resource(self) -> str:
        """Returns the resource's plural with the subresource: "deployments", "pods/status"."""
        return parse_path(self.path)[1]

    @property
    def verb(self) -> str:
        """Returns the verb that RBAC checks."""
        named = parse_path(self.path)[2]
        if self.method == "GET":
            return "watch" if self.watch else "get" if named else "list"
        if self.method == "DELETE":
            return "delete" if named else "deletecollection"
        return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(self.method, self.method.lower())

    @property
    def write(self) -> bool:
        """Returns whether the request changes an object other than a Lease, an Event or an access review."""
        return self.method not in ("GET", "HEAD") and self.resource not in _BACKGROUND


def parse_path(path: str) -> tuple[str, str, bool]:
    """Returns the API group ("" is core), the resource with its subresource, and whether the path names one object."""
    parts = path.strip("/").split("/")
    if parts[0] == "api":
        group, rest = "", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, rest = parts[1], parts[3:]
    else:
        return "", path, False
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    resource = rest[0] if rest else path
    return group, f"{resource}/{rest[2]}" if len(rest) > 2 else resource, len(rest) > 1
