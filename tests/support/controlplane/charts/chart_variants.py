"""Variants of the chart's values. All must pass its schema and render, and the API server must accept the result."""

from __future__ import annotations

from typing import Any

import yaml

from support.docs.doc_examples import ROOT

NOTHING_OPTIONAL: dict[str, Any] = {
    "rbac": {"create": False},
    "crds": {"install": False},
    "networkPolicy": {"enabled": False},
    "serviceAccount": {"create": False},
    "podDisruptionBudget": {"enabled": False},
    "metrics": {"podMonitors": {"enabled": False}},
}
PREFERRED = {
    "weight": 1,
    "preference": {"matchExpressions": [{"key": "example.com/system", "operator": "Exists"}]},
}
EVERYTHING: dict[str, Any] = {
    "fullnameOverride": "omni",
    "commonLabels": {"team": "speech"},
    "imageRegistry": "registry.example:5000/mirror",
    "image": {"tag": "1.2.3", "pullPolicy": "Always"},
    "stageImage": {"digest": f"sha256:{'0' * 64}", "pullPolicy": "Never"},
    "imagePullSecrets": [{"name": "registry"}],
    "watchNamespaces": ["team-a", "team-b"],
    "clusterDomain": "example.local",
    "hubEndpoint": "https://hub.example:8443/hf",
    "tracing": {"otlpEndpoint": "http://collector.observability.svc:4317"},
    "replicas": 3,
    "operator": {
        "logFormat": "text",
        "logLevel": "debug",
        "apiQps": 50,
        "workers": 2,
        "resyncSeconds": 60,
        "leaseDurationSeconds": 30,
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraArgs": ["--debounce", "0.1"],
    },
    "podAnnotations": {"example.com/note": "a"},
    "podLabels": {"example.com/kind": "operator"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [PREFERRED]}},
    "topologySpreadConstraints": [
        {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "system-cluster-critical",
    "extraVolumes": [{"name": "authority", "configMap": {"name": "authority"}}],
    "extraVolumeMounts": [{"name": "authority", "mountPath": "/etc/authority", "readOnly": True}],
    "serviceAccount": {"name": "operator", "annotations": {"example.com/role": "omni"}},
    "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
    "metrics": {
        "service": {"annotations": {"example.com/scrape": "true"}},
        "serviceMonitor": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "interval": "10s",
            "relabelings": [{"action": "labeldrop", "regex": "instance"}],
            "metricRelabelings": [{"action": "drop", "sourceLabels": ["__name__"], "regex": "python_.*"}],
        },
        "podMonitors": {"labels": {"release": "prometheus", "example.com/team": "speech"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboards": {"enabled": True, "annotations": {"grafana_folder": "omnipipeline"}},
    },
}
_INGRESS_PAGE = (ROOT / "docs" / "gateway-operations.md").read_text(encoding="utf-8")
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": EVERYTHING,
    "nothing optional": NOTHING_OPTIONAL,
    "two replicas": {"replicas": 2},
    "no pod": {"replicas": 0},
    "one namespace": {"watchNamespaces": ["2024"]},
    "nothing below a key": {"watchNamespaces": None, "gateway": {"enabled": True, "settings": None}},
    "no rights in the cluster": {
        "watchNamespaces": ["team-a"],
        "crds": {"install": False},
        "rbac": {"aggregate": False},
    },
    "an account of somebody else": {"serviceAccount": {"create": False, "name": "somebody"}},
    "users of the platform": {"podSecurityContext": {"runAsUser": None, "runAsGroup": None}},
    "labels that repeat others": {
        "commonLabels": {"app.kubernetes.io/part-of": "speech", "team": "all"},
        "podLabels": {"team": "operators"},
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"team": "metrics"}},
            "prometheusRule": {"enabled": True, "labels": {"team": "metrics"}},
            "dashboards": {"enabled": True, "labels": {"team": "metrics"}},
        },
        "gateway": {"enabled": True},
    },
    "gateway": {"gateway": {"enabled": True}},
    "gateway of two namespaces, with everything": {
        "watchNamespaces": ["team-a", "team-b"],
        "tracing": {"otlpEndpoint": "http://collector.observability.svc:4317"},
        "gateway": {
            "enabled": True,
            "wakesGrpcCallers": True,
            "keysSecret": "keys",
            "tlsSecret": "tls",
            "entryCaSecret": "entry-ca",
            "entryCertificateSecret": "gateway-client",
            "settings": {"drainSeconds": 60, "corsOrigins": ["https://app.example.com"]},
            "autoscaling": {"enabled": True},
            "ingress": {"enabled": True, "className": "nginx", "host": "*.example.com", "tlsSecret": "host"},
            "httpRoute": {
                "enabled": True,
                "parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "https"}],
                "hostnames": ["speech.example.com", "*.speech.example.com"],
                "annotations": {"example.com/note": "a"},
            },
            "networkPolicy": {"from": [{"namespaceSelector": {}}], "apiServerPorts": [9443]},
        },
    },
    "the Ingress of docs/gateway-operations.md": yaml.safe_load(_INGRESS_PAGE.split("```yaml\n")[1].split("```")[0]),
    "bare pods": {"resources": None, "podSecurityContext": None, "securityContext": None},
    "below a chart with globals": {"global": {"imageRegistry": "elsewhere"}},
}
