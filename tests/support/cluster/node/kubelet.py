"""The node's kubelet, kube-proxy and CoreDNS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from support.cluster.node.daemon import Daemon
from support.cluster.node.layout import CGROUP, NODE, POD_NETWORK, Layout

_COREFILE = """\
.:53 {{
  bind {address}
  errors
  cache 1
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {kubeconfig}
    ttl 1
  }}
}}
"""


def build_kubelet(
    layout: Layout, program: Path, kubeconfig: Path, address: str, *, ca: Path, certificate: Path, key: Path
) -> Daemon:
    """Returns the kubelet, which uses the node's cgroup and containerd. cgroup v1 and v2 both work."""
    resolv = layout.run / "resolv.conf"
    resolv.write_text("nameserver 127.0.0.1\n")
    configuration: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(ca)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "clusterDNS": [address],
        "clusterDomain": "cluster.local",
        "resolvConf": str(resolv),
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "podLogsDir": str(layout.run / "pod-logs"),
        "imageGCHighThresholdPercent": 100,
        # Memory only: a full disk must not evict pods or remove images, which take minutes to build.
        "evictionHard": {"memory.available": "100Mi"},
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "syncFrequency": "10s",
    }
    path = layout.run / "kubelet.yaml"
    path.write_text(yaml.safe_dump(configuration))
    return Daemon(
        layout,
        "kubelet",
        [
            program,
            f"--config={path}",
            f"--kubeconfig={kubeconfig}",
            f"--root-dir={layout.run / 'kubelet'}",
            f"--cert-dir={layout.run / 'kubelet'}",
            f"--hostname-override={NODE}",
            f"--node-ip={address}",
        ],
    )


def build_kube_proxy(layout: Layout, program: Path, kubeconfig: Path) -> Daemon:
    """Returns kube-proxy in iptables mode. It changes only the node's network namespace."""
    return Daemon(
        layout,
        "kube-proxy",
        [
            program,
            f"--kubeconfig={kubeconfig}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={POD_NETWORK}",
            f"--hostname-override={NODE}",
            # 0: keep the machine's limits of connection tracking.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
            "--oom-score-adj=0",
        ],
    )


def build_coredns(layout: Layout, program: Path, kubeconfig: Path, address: str) -> Daemon:
    """Returns CoreDNS in the node's network namespace. Its answers for Services have a TTL of one second."""
    path = layout.run / "Corefile"
    path.write_text(_COREFILE.format(address=address, kubeconfig=kubeconfig))
    return Daemon(layout, "coredns", [program, "-conf", path])
