"""What is read from uris, Secrets and manifests before a bucket or a registry is asked."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import GenericError

from omni_stage.errors import ConfigurationError
from omni_stage.fetch.checkpoint import FetchRequest, open_source
from omni_stage.fetch.registry import _find_login, read_files

DIGEST = f"sha256:{'a' * 64}"
TITLE = "org.opencontainers.image.title"


def request_of(uri: str) -> FetchRequest:
    return FetchRequest(uri, "main", Path("/unused"))


@pytest.mark.parametrize(
    "uri",
    [
        *("s3://", "s3:///x", "s3://b/", "s3://b/../x", "s3://b/.x", "s3://B/x", "S3://b/x", "s3://b/x y", "gs://b//x"),
        *("oci://r", "oci://r/X", "oci://r/x@sha256:1", "oci://r/x:", "oci://r:port/x", "oci://u@r/x", "oci://r/../x"),
        *("http://h/x", "ftp://h/x"),
    ],
)
def test_uris_that_are_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_source(request_of(uri), None)
    assert caught.value.details.field == "model.uri"


@pytest.mark.parametrize(
    ("uri", "token", "told"),
    [
        ("s3://b/x", "AKIA:secretsecret", "a file of AWS credentials"),
        ("s3://b/x", "[a]\naws_access_key_id=1\n[b]\naws_access_key_id=secretsecret", "a file of AWS credentials"),
        ("s3://b/x", "[default]\naws_access_key_id=secretsecret", "a file of AWS credentials"),
        ("gs://b/x", "secretsecret", "the JSON key of a service account"),
        ("oci://r/x", "secretsecret", ".dockerconfigjson"),
        ("oci://r/x", '{"auths": {"r": {"auth": "secretsecret!"}}}', ".dockerconfigjson"),
        ("oci://r/x", '{"auths": ["secretsecret"]}', ".dockerconfigjson"),
    ],
)
def test_credentials_of_another_form_are_reported_and_not_shown(uri: str, token: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        open_source(request_of(uri), token)
    assert caught.value.details.field == "model.tokenSecretRef"
    assert "secretsecret" not in str(caught.value)


@pytest.mark.parametrize("text", ["[default]\n{}", "[reader]\n{}", "[other]\naws_access_key_id=2\n[default]\n{}"])
def test_files_of_aws_credentials_that_are_read(text: str) -> None:
    keys = "aws_access_key_id = AKIA\naws_secret_access_key = s%3Dcret\nregion = eu-west-1\n"
    source: Any = open_source(request_of("s3://b/x"), text.format(keys))
    assert source._store.config["access_key_id"] == "AKIA"
    assert source._store.config["secret_access_key"] == "s%3Dcret"
    assert source._store.config["region"] == "eu-west-1"


@pytest.mark.parametrize(
    ("key", "host"), [("r:5000", "r:5000"), ("https://r/v2/", "r"), ("https://index.docker.io/v1/", "docker.io")]
)
def test_the_login_of_the_uri_s_own_host_is_taken(key: str, host: str) -> None:
    auth = base64.b64encode(b"user:pass").decode()
    for login in ({"auth": auth}, {"username": "user", "password": "pass"}):
        assert _find_login(json.dumps({"auths": {"other": {"auth": "eA=="}, key: login}}), host) == auth
    assert _find_login(json.dumps({"auths": {"other": {"auth": auth}}}), host) == ""


def layer(name: str | None = "config.json", **changes: Any) -> dict[str, Any]:
    notes = {} if name is None else {TITLE: name}
    return {"digest": DIGEST, "size": 2, "annotations": notes, **changes}


def test_layers_with_names_are_files() -> None:
    packed = {"annotations": {"org.cncf.model.filepath": "b.safetensors"}}
    (first, second) = read_files(json.dumps({"layers": [layer(), layer(**packed)]}).encode(), "oci://r/x", "base")
    assert (first.name, first.url, first.etag, first.size) == ("config.json", f"base/blobs/{DIGEST}", "a" * 64, 2)
    assert second.name == "b.safetensors"


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        ({"layers": [layer(), layer(None)]}, r"archives.*volumes\[\]\.image"),
        ({"layers": [layer(annotations={TITLE: "x", "io.deis.oras.content.unpack": "true"})]}, "archives"),
        ({"layers": [layer(digest="sha512:00")]}, "archives"),
        ({"layers": [{"size": 1}]}, "no artifact"),
        ({"manifests": []}, "an index of several platforms"),
        ([], "no artifact"),
    ],
)
def test_manifests_that_are_no_files_are_reported(manifest: object, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        read_files(json.dumps(manifest).encode(), "oci://r/x", "base")


def test_a_session_of_s3_that_ended_is_the_login_s_fault_and_other_bad_requests_are_not() -> None:
    source = open_source(request_of("s3://b/x"), "[default]\naws_access_key_id=1\naws_secret_access_key=2")
    said = "Server returned non-2xx status code: 400 Bad Request: <Error><Code>%s</Code></Error>"
    fields = {}
    for code in ("ExpiredToken", "InvalidToken", "InvalidRequest"):
        error = source.explain(GenericError(said % code), None)
        assert error is not None
        fields[code] = error.details.field
    login = "model.tokenSecretRef"
    assert fields == {"ExpiredToken": login, "InvalidToken": login, "InvalidRequest": "model.uri"}
