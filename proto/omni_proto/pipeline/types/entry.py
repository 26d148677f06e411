"""How clients reach a pipeline: the entry's TLS, the stable Service, and the route to it from outside the cluster.

Field names of routes are those of gateway.networking.k8s.io/v1 and networking.k8s.io/v1.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from omni_proto.pipeline.types.kubernetes import (
    LIST_SET,
    NAMESPACE_PATTERN,
    SUBDOMAIN,
    SUBDOMAIN_PATTERN,
    AnnotationValue,
    LabelKey,
    SubdomainName,
)
from omni_proto.stage_config import ClientCertificates, ConfigModel

HOST_PATTERN: Final = rf"^(\*\.)?({SUBDOMAIN}\.)?[a-z]([-a-z0-9]*[a-z0-9])?$"
"""A host name, or *. and one. Its last label begins with a letter, because no route takes an IP address."""

Host = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=HOST_PATTERN)]
Namespace = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=NAMESPACE_PATTERN)]
EntryAnnotations = Annotated[dict[LabelKey, AnnotationValue], Field(max_length=16)]


class EntryTls(ConfigModel):
    """The certificate of the entry stage. Clients then connect over TLS 1.2 or newer."""

    secret_name: SubdomainName
    """Secret in the pipeline's namespace with tls.crt and tls.key (and ca.crt), as cert-manager writes it. A renewed
    certificate is served without a restart."""
    client_certificates: ClientCertificates = ClientCertificates.IGNORED
    """Required: clients must present a certificate signed by the ca.crt of the same Secret."""


class EntryService(ConfigModel):
    """The stable Service with the pipeline's name."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Who reaches it: pods of the cluster, or also clients outside of it. Use TLS, or the HTTP gateway with keys,
    before clients from outside reach it."""
    annotations: EntryAnnotations = Field(default_factory=dict)
    """Annotations, e.g. of the cloud's load balancer."""
    load_balancer_class: LabelKey | None = None
    """Implementation of the load balancer. Default: the cluster's. An existing load balancer keeps its class: to
    change it, set type: ClusterIP first."""


class ParentReference(ConfigModel):
    """A Gateway that the route attaches to."""

    name: SubdomainName
    """Name of the Gateway."""
    namespace: Namespace | None = None
    """Its namespace. Default: the pipeline's. The Gateway's allowedRoutes must admit routes of the pipeline's."""
    section_name: SubdomainName | None = None
    """Name of one of its listeners. Default: every listener that fits."""
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """Port of its listeners. Default: every port."""


class CaCertificateReference(ConfigModel):
    """An object in the pipeline's namespace with certificates of CAs under the key ca.crt."""

    kind: Literal["ConfigMap", "Secret"] = "ConfigMap"
    """Kind of the object. Not every implementation of the Gateway API reads Secrets."""
    name: SubdomainName
    """Name of the object."""


class BackendTls(ConfigModel):
    """How the Gateways check the certificate of the entry: a BackendTLSPolicy with the pipeline's name."""

    hostname: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=SUBDOMAIN_PATTERN)] | None = None
    """Name for which the certificate must be valid. Default: PIPELINE.NAMESPACE.svc."""
    ca_certificate_refs: Annotated[list[CaCertificateReference], Field(min_length=1, max_length=8)]
    """CAs that may have signed it. Every implementation takes one ConfigMap."""


class GatewayApiRoute(ConfigModel):
    """A route of the Gateway API."""

    kind: Literal["GRPCRoute", "HTTPRoute"] = "GRPCRoute"
    """Kind of the route. HTTPRoute is for implementations without GRPCRoute: they take the protocol, HTTP/2, from the
    Service's appProtocol."""
    parent_refs: Annotated[list[ParentReference], Field(min_length=1, max_length=8)]
    """The Gateways that clients connect to. Several entries for one Gateway need a sectionName each."""
    hostnames: Annotated[list[Host], Field(max_length=16, json_schema_extra=LIST_SET)] = Field(default_factory=list)
    """Host names by which clients call the pipeline. All pipelines have the same paths, so these
    distinguish them. Default: those of the listener."""
    backend_tls: BackendTls | None = None
    """TLS between the Gateways and the entry; needed if the entry has tls. Default: plaintext."""


class IngressRoute(ConfigModel):
    """An Ingress. Its controller must forward HTTP/2, which some do only with annotations."""

    ingress_class_name: SubdomainName | None = None
    """Name of the IngressClass. Default: the cluster's default class."""
    host: Host
    """Host name by which clients call the pipeline."""
    tls_secret_name: SubdomainName | None = None
    """Secret in the pipeline's namespace with the certificate of host. Most controllers speak HTTP/2 only over TLS."""


class EntryRoute(ConfigModel):
    """A route from outside the cluster to the stable Service: an object with the pipeline's name, which the operator
    keeps. Exactly one of gatewayApi and ingress."""

    gateway_api: GatewayApiRoute | None = None
    """A GRPCRoute or HTTPRoute."""
    ingress: IngressRoute | None = None
    """An Ingress."""
    annotations: EntryAnnotations = Field(default_factory=dict)
    """Annotations of the object, e.g. of the controller or of external-dns."""


class Entry(ConfigModel):
    """How clients reach the pipeline."""

    service: EntryService = EntryService()
    """The stable Service with the pipeline's name."""
    tls: EntryTls | None = None
    """TLS between clients and the entry stage. Default: plaintext, without authentication."""
    route: EntryRoute | None = None
    """How a Gateway or an Ingress leads clients from outside the cluster to the Service. Default: not at all. A
    pipeline's port knows no users: let the route's controller ask for credentials."""
