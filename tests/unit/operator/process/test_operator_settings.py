"""Settings from flags and environment variables: the parsed values, and the messages that refuse wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_operator.process.settings import ENV_PREFIX, OperatorSettings, OperatorSettingsError, parse_settings
from support.tables import each_row


def test_defaults() -> None:
    settings = parse_settings([], {})
    assert settings.namespaces == ()
    assert settings.identity
    assert settings.identity != parse_settings([], {}).identity, "two processes on one host have different identities"
    defaults = OperatorSettings(identity=settings.identity, lease_namespace=settings.lease_namespace)
    assert settings == defaults


def test_flags() -> None:
    line = (
        "--kubeconfig k --namespace a --namespace b --namespace a --default-image i:1 --image-pull-policy Always "
        "--cluster-domain example.org --no-pod-monitors --log-format text --log-level debug --api-qps 5 --workers 2 "
        "--debounce 0.2 --status-pause 3 --resync 60 --health-port 1 --metrics-port 2 --address-file f --lease-name l "
        "--lease-namespace n --identity me --lease-duration 30 --pod-monitor-labels release=p,a.io/b= "
        "--hub-endpoint https://hub.example:8443/x --otlp-endpoint http://collector:4317"
    )
    settings = parse_settings(line.split(), {})
    assert settings == OperatorSettings(
        kubeconfig=Path("k"),
        namespaces=("a", "b"),
        default_image="i:1",
        image_pull_policy="Always",
        cluster_domain="example.org",
        hub_endpoint="https://hub.example:8443/x",
        otlp_endpoint="http://collector:4317",
        pod_monitors=False,
        pod_monitor_labels=(("a.io/b", ""), ("release", "p")),
        log_format="text",
        log_level="debug",
        api_qps=5.0,
        workers=2,
        debounce_s=0.2,
        status_pause_s=3.0,
        resync_s=60.0,
        health_port=1,
        metrics_port=2,
        address_file=Path("f"),
        lease_name="l",
        lease_namespace="n",
        identity="me",
        lease_duration_s=30,
    )


def test_environment_and_a_flag_wins() -> None:
    environ = {
        "OMNI_OPERATOR_NAMESPACE": "a, b c",
        "OMNI_OPERATOR_LOG_FORMAT": "text",
        "OMNI_OPERATOR_API_QPS": "7",
        "OMNI_OPERATOR_WORKERS": "3",
        "OMNI_OPERATOR_POD_MONITORS": "false",
        "OMNI_OPERATOR_KUBECONFIG": "/k",
        "OMNI_OPERATOR_IDENTITY": "",
        "UNRELATED": "x",
    }
    settings = parse_settings(["--workers", "5"], environ)
    assert settings.namespaces == ("a", "b", "c")
    assert (settings.log_format, settings.api_qps, settings.workers) == ("text", 7.0, 5)
    assert settings.pod_monitors is False
    assert settings.kubeconfig == Path("/k")


def test_the_lease_lies_in_the_first_namespace_that_is_served() -> None:
    assert parse_settings(["--namespace", "a", "--namespace", "b"], {}).lease_namespace == "a"
    assert parse_settings([], {}).lease_namespace == "default"


@each_row(
    "arguments, environ, words",
    [
        ("--nonsense", {}, "--help"),
        ("--log-for text", {}, "--help"),
        ("--namespace A_B", {}, "--namespace 'A_B' is not a valid namespace"),
        ("--cluster-domain a..b/", {}, "--cluster-domain"),
        ("--lease-name X", {}, "--lease-name"),
        ("--hub-endpoint ftp://x", {}, "must be an http or https URL"),
        ("--api-qps 0", {}, "--api-qps is 0.0, but must be from 0.1"),
        ("--api-qps nan", {}, "--api-qps"),
        ("--workers 0", {}, "--workers"),
        ("--pod-monitor-labels a=b,c", {}, "--pod-monitor-labels is 'c', but must be a label: KEY=VALUE"),
        ("--debounce 11", {}, "--debounce"),
        ("--status-pause -1", {}, "--status-pause"),
        ("--resync 0", {}, "--resync"),
        ("--lease-duration 1", {}, "--lease-duration"),
        ("--health-port 65536", {}, "--health-port"),
        ("--metrics-port x", {}, "--metrics-port"),
        ("--log-format xml", {}, "--log-format"),
        ("", {"WORKERS": "many"}, "OMNI_OPERATOR_WORKERS is 'many', but must be a number"),
        ("", {"LOG_FORMAT": "xml"}, "must be one of json, text"),
        ("", {"POD_MONITORS": "1"}, "must be true or false"),
        ("", {"HEALTH_PORT": "-1"}, "OMNI_OPERATOR_HEALTH_PORT is -1"),
    ],
    ids=lambda value: str(value),
)
def test_what_is_refused(arguments: str, environ: dict[str, str], words: str) -> None:
    with pytest.raises(OperatorSettingsError) as caught:
        parse_settings(arguments.split(), {ENV_PREFIX + name: value for name, value in environ.items()})
    assert words in str(caught.value)
