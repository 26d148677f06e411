"""How a pod gets its files: the model and the container that downloads it, the hub token, the entry's certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_operator.desired.build_settings import BuildSettings
from omni_proto.stage_config import Listen, ServerTls, parse_stage_config
from omni_stage.__main__ import _parser
from omni_stage.models.registry import weight_prefixes
from support.operator.operator_pipelines import build_all, make_pipeline, make_single, make_stages, pick, pod_spec
from support.operator.pod_templates import HUB, all_containers, env_of


class TestModel:
    """Where the checkpoint comes from."""

    def model_path(self, children: list[dict[str, Any]], stage: str = "llm") -> str:
        return parse_stage_config(pick(children, "ConfigMap", stage)["data"]["stage.yaml"]).model.path

    def test_in_the_image(self) -> None:
        children = build_all(make_single())
        spec = pod_spec(children)
        assert "initContainers" not in spec
        assert "models" not in {volume["name"] for volume in spec["volumes"]}
        assert self.model_path(children) == "/models/tiny"

    @pytest.mark.parametrize(
        ("uri", "path"), [("pvc://models/qwen/omni", "/models/qwen/omni"), ("pvc://models", "/models")]
    )
    def test_on_a_claim(self, uri: str, path: str) -> None:
        children = build_all(make_single(spec={"model": {"uri": uri}}))
        spec = pod_spec(children)
        assert "initContainers" not in spec
        volume = next(volume for volume in spec["volumes"] if volume["name"] == "models")
        assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
        assert {"name": "models", "mountPath": "/models", "readOnly": True} in spec["containers"][0]["volumeMounts"]
        assert self.model_path(children) == path

    def test_from_the_hub_into_a_directory_of_the_component(self) -> None:
        children = build_all(make_pipeline(**HUB))
        for stage in make_stages():
            spec = pod_spec(children, stage["name"])
            args = _parser().parse_args(spec["initContainers"][0]["args"])
            assert str(args.dest) == self.model_path(children, stage["name"])
            assert args.dest.parent == args.commit_file.parent
            assert args.component == stage["component"]
            assert weight_prefixes(args.component)
            assert args.revision == "main"

    def test_the_token_is_a_file_that_only_the_download_sees(self) -> None:
        spec = pod_spec(build_all(make_single(spec=HUB)))
        fetch, stage = spec["initContainers"][0], spec["containers"][0]
        volume = next(volume for volume in spec["volumes"] if volume["name"] == "hub-token")
        assert volume["secret"] == {
            "secretName": "hub",
            "items": [{"key": "token", "path": "token"}],
            "defaultMode": 0o440,
            "optional": True,
        }
        mount = next(mount for mount in fetch["volumeMounts"] if mount["name"] == "hub-token")
        assert str(_parser().parse_args(fetch["args"]).token_file) == f"{mount['mountPath']}/token"
        assert mount["readOnly"] is True
        assert "hub-token" not in {mount["name"] for mount in stage["volumeMounts"]}
        assert "secretKeyRef" not in str(spec)

    def test_a_public_repository_needs_no_token(self) -> None:
        spec = pod_spec(build_all(make_single(spec={"model": {"uri": "hf://org/model"}})))
        assert "--token-file" not in spec["initContainers"][0]["args"]
        assert "secret" not in str(spec["volumes"])

    def test_the_certificate_is_a_directory_of_the_entry_alone(self) -> None:
        """Only the entry's pods mount the certificate's Secret."""
        tls = {"secretName": "web-cert", "clientCertificates": "Required"}
        children = build_all(make_pipeline(entry={"tls": tls}))
        spec = pod_spec(children, "thinker")
        volume = next(volume for volume in spec["volumes"] if volume["name"] == "tls")
        assert volume["secret"] == {
            "secretName": "web-cert",
            "items": [{"key": name, "path": name} for name in ("tls.crt", "tls.key", "ca.crt")],
            "defaultMode": 0o440,
            "optional": True,
        }
        (mount,) = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "tls"]
        assert set(mount) == {"name", "mountPath", "readOnly"}
        config = parse_stage_config(pick(children, "ConfigMap", "thinker")["data"]["stage.yaml"])
        assert config.listen.tls == ServerTls(
            directory=mount["mountPath"], client_certificates="Required", source="Secret web-cert"
        )
        for stage in ("talker", "token2wav"):
            assert "web-cert" not in str(pod_spec(children, stage))
            assert parse_stage_config(pick(children, "ConfigMap", stage)["data"]["stage.yaml"]).listen == Listen()

    def test_turning_tls_on_restarts_the_entry_alone(self) -> None:
        before, after = build_all(make_pipeline()), build_all(make_pipeline(entry={"tls": {"secretName": "cert"}}))
        for stage, same in (("thinker", False), ("talker", True), ("token2wav", True)):
            assert (pick(before, "Deployment", stage) == pick(after, "Deployment", stage)) is same

    def test_serving_is_offline_fetching_is_not(self) -> None:
        spec = pod_spec(build_all(make_single(spec=HUB)))
        assert env_of(spec["containers"][0])["HF_HUB_OFFLINE"] == "1"
        assert env_of(spec["initContainers"][0])["HF_HUB_OFFLINE"] == "0"
        assert "HF_ENDPOINT" not in env_of(spec["initContainers"][0])
        mirrored = pod_spec(build_all(make_single(spec=HUB), BuildSettings(hub_endpoint="https://hub.example")))
        assert env_of(mirrored["initContainers"][0])["HF_ENDPOINT"] == "https://hub.example"

    def test_the_cache_is_a_claim_or_a_bounded_volume_of_the_pod(self) -> None:
        own = pod_spec(build_all(make_single(resources={"limits": {"nvidia.com/gpu": 2}}, spec=HUB)))
        assert {"name": "models", "emptyDir": {"sizeLimit": "400Gi"}} in own["volumes"]
        claim = {"model": {**HUB["model"], "cache": {"persistentVolumeClaim": "cache"}}}
        shared = pod_spec(build_all(make_single(spec=claim)))
        assert {"name": "models", "persistentVolumeClaim": {"claimName": "cache"}} in shared["volumes"]
        for spec in (own, shared):
            assert {"name": "models", "mountPath": "/models"} in spec["initContainers"][0]["volumeMounts"]
            assert {"name": "models", "mountPath": "/models", "readOnly": True} in spec["containers"][0]["volumeMounts"]

    def test_each_stage_downloads_its_own_model_with_its_own_token_into_its_own_cache(self) -> None:
        stages = make_stages()
        stages[1]["model"] = {
            "uri": "hf://org/talker",
            "revision": "v2",
            "tokenSecretRef": {"name": "talker-hub"},
            "cache": {"persistentVolumeClaim": "talkers"},
        }
        stages[2]["model"] = {"uri": "pvc://voices/wav"}
        children = build_all(make_pipeline(stages, **HUB))
        thinker, talker, wav = (pod_spec(children, stage["name"]) for stage in stages)
        fetched = [_parser().parse_args(spec["initContainers"][0]["args"]) for spec in (thinker, talker)]
        assert [(args.uri, args.revision) for args in fetched] == [
            ("hf://org/model", "main"),
            ("hf://org/talker", "v2"),
        ]
        assert (
            str(fetched[1].dest)
            == self.model_path(children, "talker")
            == ("/models/org/talker/rev-v2/qwen2_5_omni--talker")
        )
        assert fetched[1].dest.parent == fetched[1].commit_file.parent != fetched[0].commit_file.parent
        assert {"name": "models", "persistentVolumeClaim": {"claimName": "talkers"}} in talker["volumes"]
        assert {"name": "models", "emptyDir": {"sizeLimit": "200Gi"}} in thinker["volumes"]
        secrets = [
            [volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume]
            for spec in (thinker, talker, wav)
        ]
        assert secrets == [["hub"], ["talker-hub"], []]
        assert "initContainers" not in wav
        assert self.model_path(children, "token2wav") == "/models/wav"
        hubs = [str(pick(children, "NetworkPolicy", stage["name"])).count("0.0.0.0/0") for stage in stages]
        assert hubs == [1, 1, 0]

    def test_a_stage_s_own_model_inherits_neither_token_nor_cache(self) -> None:
        shared = {**HUB["model"], "cache": {"persistentVolumeClaim": "cache"}}
        spec = pod_spec(build_all(make_single(model={"uri": "hf://org/public"}, spec={"model": shared})))
        assert "--token-file" not in spec["initContainers"][0]["args"]
        assert {"name": "models", "emptyDir": {"sizeLimit": "200Gi"}} in spec["volumes"]

    def test_folders_of_a_repository_share_its_commit_but_no_files(self) -> None:
        """No folder's files lie inside those of another, and each path has parts that a file system allows."""
        folders = ["", "/en", "/en/en_US", "/rev-main/qwen2_5_omni--thinker", f"/{'x' * 400}"]
        all_files = []
        for folder in folders:
            pod = pod_spec(build_all(make_single(spec={"model": {"uri": f"hf://org/voices{folder}"}})))
            args = _parser().parse_args(pod["initContainers"][0]["args"])
            assert args.uri == f"hf://org/voices{folder}"
            all_files.append((args.dest, args.commit_file))
        assert {commit_file for _, commit_file in all_files} == {Path("/models/org/voices/rev-main/commit.json")}
        assert {dest.parent for dest, _ in all_files} == {Path("/models/org/voices/rev-main")}
        assert len({dest for dest, _ in all_files}) == len(folders)
        assert max(len(dest.name) for dest, _ in all_files) < 255

    def test_buckets_and_artifacts_have_a_directory_for_each_uri(self) -> None:
        uris = [
            *("s3://bucket", "s3://bucket/omni", "s3://bucket/other/omni", "gs://bucket/omni", "az://bucket/omni"),
            *("oci://r.example:5000/omni:v1", "oci://r.example:5000/omni:v2", f"s3://bucket/{'x' * 400}"),
        ]
        places = set()
        for uri in uris:
            model = {"uri": uri, "tokenSecretRef": {"name": "x"}, "cache": {"persistentVolumeClaim": "c"}}
            children = build_all(make_single(spec={"model": model}), BuildSettings(hub_endpoint="http://hub.svc:8080"))
            args = _parser().parse_args(pod_spec(children)["initContainers"][0]["args"])
            assert (args.uri, args.revision, str(args.dest)) == (uri, "main", self.model_path(children))
            assert args.dest.parent == args.commit_file.parent
            assert args.dest.parts[2] == f"_{uri.partition(':')[0]}"
            assert max(map(len, args.dest.parts)) < 255
            assert "8080" not in str(pick(children, "NetworkPolicy", "llm")), "that is the hub's port"
            places.add(args.dest)
        assert len(places) == len(uris)

    @pytest.mark.parametrize("revision", ["refs/pr/1", "v1.0"])
    def test_a_revision_is_one_folder_of_the_cache(self, revision: str) -> None:
        children = build_all(make_single(spec={"model": {"uri": "hf://org/model", "revision": revision}}))
        path = Path(self.model_path(children))
        assert path.parts[:4] == ("/", "models", "org", "model")
        assert len(path.parts) == 6
        assert ".." not in path.parts

    def test_the_download_is_charged_like_the_stage_but_takes_no_gpu(self) -> None:
        """The download container has the stage's CPU and memory resources, but no GPU."""
        resources = {"limits": {"nvidia.com/gpu": 1, "memory": "8Gi", "cpu": 2}, "requests": {"cpu": "500m"}}
        fetch, stage = all_containers(pod_spec(build_all(make_single(resources=resources, spec=HUB))))
        assert stage["resources"]["limits"] == {"nvidia.com/gpu": "1", "memory": "8Gi", "cpu": "2"}
        assert fetch["resources"] == {"limits": {"memory": "8Gi", "cpu": "2"}, "requests": {"cpu": "500m"}}

    def test_without_resources_none_are_given(self) -> None:
        for container in all_containers(pod_spec(build_all(make_single(spec=HUB)))):
            assert "resources" not in container
