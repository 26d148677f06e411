"""Unusual pipelines: common mistakes, and specs that look odd but are valid.

The error of an invalid pipeline names the field, what was found, what is allowed and what to do. The API server and
`omnipipe validate` use the same message if a rule rejects the pipeline.
"""

from __future__ import annotations

from typing import Any, Final

from support.specs.bad_field_specs import URI
from support.specs.spec_edits import S0, Bad, Edit, edit, first, node_affinity


def _limits(**values: Any) -> Edit:
    return first(resources={"limits": values})


def _uri(uri: str, hint: str) -> Bad:
    return Bad((edit("spec/model/uri", uri),), "spec.model.uri", f"{URI}; found {uri}{hint}")


_HUB = "; a repository of the Hugging Face hub is hf://ORG/NAME"
_SCHEME = "; did you mean hf://, s3://, gs://, az:// or oci://?"
_VOLUME = "; download the checkpoint to a volume and name that: pvc://CLAIM/PATH"
_DIRECTORY = "; a directory in the image is file:///PATH"
_REVISION = "; give what follows the name as revision"
_SLASH = "; remove the slash at its end"


def _image(name: str) -> Bad:
    return Bad(
        (first(image=name),),
        f"{S0}.image",
        f"must be the name of an image such as registry.example/omnipipeline:0.1.0; found {name}",
    )


def _no_plugin(name: str) -> Bad:
    return Bad(
        (_limits(**{name: 1}),),
        f"{S0}.resources.limits",
        f'resources that no device plugin offers: ["{name}"]; GPUs are nvidia.com/gpu or amd.com/gpu',
    )


ODD_BAD: Final[dict[str, Bad]] = {
    "repository of the hub": _uri("Qwen/Qwen2.5-Omni-7B", _HUB),
    "page of the hub": _uri("https://huggingface.co/Qwen/Qwen2.5-Omni-7B", _HUB),
    "bucket by its tool's name": _uri("gcs://bucket/model", _SCHEME),
    "bucket in capitals": _uri("S3://bucket/model", _SCHEME),
    "bucket with a slash at its end": _uri("s3://bucket/model/", _SLASH),
    "bucket that begins with a slash": _uri("s3:///model", ""),
    "hidden folder of a bucket": _uri("s3://bucket/.cache", ""),
    "artifact with its docker scheme": _uri("docker://registry/model", _SCHEME),
    "artifact without its name": _uri("oci://registry:5000", ""),
    "artifact with half a digest": _uri("oci://registry/model@sha256:12", ""),
    "another store": _uri("swift://bucket/model", _VOLUME),
    "path without scheme": _uri("/models/omni", _DIRECTORY),
    "file without path": _uri("file:///", _DIRECTORY),
    "revision after a colon": _uri("hf://Qwen/Qwen2.5-Omni-7B:main", _REVISION),
    "revision after an at sign": _uri("hf://Qwen/Qwen2.5-Omni-7B@main", _REVISION),
    "repository with a slash at its end": _uri("hf://Qwen/Qwen2.5-Omni-7B/", _SLASH),
    "path with a slash at its end": _uri("pvc://models/omni/", _SLASH),
    "folder of a repository with a slash at its end": _uri("hf://rhasspy/piper-voices/en/", _SLASH),
    "folder of a repository with a revision": _uri("hf://rhasspy/piper-voices/en/en_US@v1", _REVISION),
    "hidden folder of a repository": _uri("hf://rhasspy/piper-voices/.cache", ""),
    "page of the hub without its scheme": _uri("huggingface.co/Qwen/Qwen2.5-Omni-7B", _HUB),
    "uri with a space at its end": _uri("hf://Qwen/Qwen2.5-Omni-7B ", "; remove the space"),
    "file of two slashes": _uri("file://models/omni", _DIRECTORY),
    "claim with two dots": _uri("pvc://models..v2/omni", ""),
    **{
        f"repository {uri[-20:]}": Bad(
            (edit("spec/model/uri", uri),),
            "spec.model.uri",
            f"{uri} is no name that the Hugging Face hub allows; give the repository's name as its page shows it",
        )
        for uri in (
            *("hf://Qwen/a--b", "hf://Qwen/a..b", "hf://Qwen/omni.git", "hf://Qwen/omni.git/voice"),
            *(f"hf://Qwen/{'x' * 97}", f"hf://Qwen/{'y' * 97}/voice"),
        )
    },
    "label of nodes with an empty part": Bad(
        (edit("spec/defaults/nodeSelector", {"a..b/c": "d"}),),
        "spec.defaults.nodeSelector",
        'keys must be such as team or example.com/team; found ["a..b/c"]',
    ),
    "image with the scheme of its registry": _image("https://registry.example/omni:1"),
    "image with a scheme": _image("docker://omni:1"),
    "image in capitals": _image("registry.example/Omni:1"),
    "image with two tags": _image("omni:1:2"),
    "image with half a digest": _image("omni@sha256:0123"),
    "image by its branch": _image("omni@main"),
    "image with an empty folder": _image("registry.example//omni"),
    "image with a tag that begins with a dot": _image("omni:.1"),
    "gpu by half its name": Bad(
        (_limits(gpu=1),), f"{S0}.resources.limits", 'resources that Kubernetes does not know: ["gpu"]; it knows cpu, '
    ),
    "memory by half its name": Bad((_limits(mem="16Gi"),), f"{S0}.resources.limits", 'does not know: ["mem"]'),
    "memory requested by half its name": Bad(
        (first(resources={"requests": {"mem": "16Gi"}}),), f"{S0}.resources.requests", 'does not know: ["mem"]'
    ),
    "AMD gpu by request alone": Bad(
        (first(resources={"requests": {"amd.com/gpu": 1}}),),
        f"{S0}.resources.requests",
        "1 GPUs are requested, which is not the limit; remove amd.com/gpu from requests, the limit is enough",
    ),
    "memory of half a byte": Bad(
        (_limits(memory="512m"),), f"{S0}.resources.limits", 'less than 1Mi of ["memory"]: ["512m"]; the number counts'
    ),
    "memory without unit": Bad(
        (first(resources={"requests": {"memory": 512}}),), f"{S0}.resources.requests", 'of ["memory"]: ["512"]'
    ),
    "disk of half a byte": Bad((_limits(**{"ephemeral-storage": "500m"}),), f"{S0}.resources.limits", "less than 1Mi"),
    "no cpu": Bad((_limits(cpu="0"),), f"{S0}.resources.limits", "cpu 0 is too small; give at least 1m"),
    "half an AMD gpu": Bad(
        (_limits(**{"amd.com/gpu": "500m"}),), f"{S0}.resources.limits", "500m GPUs are set; give a whole number"
    ),
    "65 AMD gpus": Bad((_limits(**{"amd.com/gpu": 65}),), f"{S0}.resources.limits", "65 GPUs are set"),
    "gpus of two vendors": Bad(
        (_limits(**{"amd.com/gpu": 1, "nvidia.com/gpu": 1}),),
        f"{S0}.resources.limits",
        "GPUs of several vendors are requested: [",
    ),
    "half a network card": Bad(
        (_limits(**{"example.com/nic": "500m"}),), f"{S0}.resources.limits", '["example.com/nic"] is ["500m"]'
    ),
    "network card by request alone": Bad(
        (first(resources={"requests": {"example.com/nic": 1}}),),
        f"{S0}.resources.requests",
        'a request of ["example.com/nic"] must equal the limit; set these resources in limits only',
    ),
    "gpus of NVIDIA": _no_plugin("nvidia.com/gpus"),
    "gpu in capitals": _no_plugin("nvidia.com/GPU"),
    "gpu of a domain without com": _no_plugin("nvidia/gpu"),
    "gpu as a quota names it": _no_plugin("requests.nvidia.com/gpu"),
    "gpu by its former name": _no_plugin("alpha.kubernetes.io/nvidia-gpu"),
    "huge pages of no size": Bad(
        (_limits(**{"hugepages-2MB": "64Mi", "memory": "1Gi"}),),
        f"{S0}.resources.limits",
        'does not know: ["hugepages-2MB"]; it knows cpu, memory, ephemeral-storage, huge pages such as hugepages-2Mi, '
        "and extended resources of a domain such as nvidia.com/gpu",
    ),
    "huge pages without memory": Bad(
        (_limits(**{"hugepages-2Mi": "64Mi"}),),
        f"{S0}.resources.limits",
        "huge pages are limited without cpu or memory, which Kubernetes refuses; add a limit of memory",
    ),
    "one and a half huge pages": Bad(
        (_limits(**{"hugepages-2Mi": "3Mi", "memory": "1Gi"}),),
        f"{S0}.resources.limits",
        'not a whole number of huge pages: ["hugepages-2Mi"] is ["3Mi"]; give a multiple of the size in the name',
    ),
    "a thousandth of a huge page": Bad(
        (_limits(**{"hugepages-2Mi": "64m", "memory": "1Gi"}),), f"{S0}.resources.limits", 'is ["64m"]; give a multiple'
    ),
    "huge pages by request alone": Bad(
        (first(resources={"limits": {"memory": "1Gi"}, "requests": {"hugepages-2Mi": "64Mi"}}),),
        f"{S0}.resources.requests",
        'a request of ["hugepages-2Mi"] must equal the limit; set these resources in limits only',
    ),
    "fewer huge pages requested than limited": Bad(
        (first(resources={"limits": {"memory": "1Gi", "hugepages-1Gi": "2Gi"}, "requests": {"hugepages-1Gi": "1Gi"}}),),
        f"{S0}.resources.requests",
        'a request of ["hugepages-1Gi"] must equal the limit; set these resources in limits only',
    ),
    "collector on a port that does not exist": Bad(
        (edit("spec/tracing", {"otlpEndpoint": "http://collector:99999"}),),
        "spec.tracing.otlpEndpoint",
        "must be an address with its port (1 to 65535) such as http://collector.observability.svc:4317; found http",
    ),
    "collector on port 0": Bad(
        (edit("spec/tracing", {"otlpEndpoint": "http://collector:0"}),), "spec.tracing.otlpEndpoint", "(1 to 65535)"
    ),
    **{
        f"revision {revision}": Bad(
            (edit("spec/model/revision", revision),),
            "spec.model.revision",
            "must be a branch, tag or commit such as main, v1.2 or refs/pr/1: parts of letters, digits, dashes and "
            f"underscores, joined by single dots or slashes; found {revision}",
        )
        for revision in ("../../x", "a..b", "/main", "main/", "refs//main", ".hidden", "a:b", "a b")
    },
    "a medium above the budget": Bad(
        (first(limits={"maxMediaBytes": 1 << 30, "maxInflightBytes": 1 << 20}),),
        f"{S0}.limits.maxMediaBytes",
        "maxMediaBytes (1073741824) is above maxInflightBytes (1048576), which all requests together may hold; lower",
    ),
    "decoded media above the budget": Bad(
        (edit("spec/media", {"maxDecodedBytes": 1 << 30}), first(limits={"maxInflightBytes": 1 << 26})),
        "spec.media",
        "maxDecodedBytes (1073741824) is above limits.maxInflightBytes of the entry ([67108864]); lower it",
    ),
    "a budget above the memory": Bad(
        (first(limits={"maxInflightBytes": 1 << 34}, resources={"limits": {"memory": "8Gi"}}),),
        f"{S0}.limits",
        "maxInflightBytes (17179869184) is not below resources.limits.memory (8Gi); lower it",
    ),
    "node term without conditions": Bad(
        (node_affinity({}),),
        "spec.defaults.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]",
        "a term without conditions matches no node; add matchExpressions, or remove the term",
    ),
    "float32 with awq": Bad(
        (first(engineArgs={"dtype": "float32", "quantization": "awq"}),),
        f"{S0}.engineArgs.dtype",
        "quantization awq computes in float16 or bfloat16, not in float32; give one of these",
    ),
}
"""Case -> a pipeline that a rule rejects."""

ODD_GOOD: Final[dict[str, tuple[Edit, ...]]] = {
    "gpus of AMD": (_limits(**{"amd.com/gpu": 2}),),
    "a slice of a gpu": (_limits(**{"nvidia.com/mig-1g.10gb": 1}),),
    "a shared gpu": (_limits(**{"nvidia.com/gpu.shared": 1}),),
    "memory of a shared gpu": (_limits(**{"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000}),),
    "huge pages, requested too, with cpu": (
        first(resources={"limits": {"hugepages-1Gi": "2Gi"}, "requests": {"hugepages-1Gi": 2 << 30, "cpu": 1}}),
    ),
    "huge pages, none of them": (_limits(**{"hugepages-2Mi": 0, "memory": "1Gi"}),),
    "a commit as revision": (edit("spec/model/revision", "0123456789abcdef" * 2 + "01234567"),),
    "a tag with dots as revision": (edit("spec/model/revision", "v1.2.3-rc_1"),),
    "collector on the last port": (edit("spec/tracing", {"otlpEndpoint": "https://10.0.0.1:65535"}),),
    "blocks of 240 tokens": (first(engineArgs={"blockSize": 240}),),
    "huge pages": (_limits(**{"hugepages-2Mi": "64Mi", "memory": "1Gi", "cpu": 1}),),
    "no cpu requested": (first(resources={"limits": {"cpu": 4}, "requests": {"cpu": 0}}),),
    "a thousandth of a cpu": (_limits(cpu="1m"),),
    "network card by its limit": (
        first(resources={"limits": {"example.com/nic": 1}, "requests": {"example.com/nic": "1"}}),
    ),
    "a medium as large as the budget": (first(limits={"maxMediaBytes": 1 << 20, "maxInflightBytes": 1 << 20}),),
    "a small budget and the default of media": (first(limits={"maxInflightBytes": 1 << 20}),),
    "decoded media of a stage that is no entry": (
        edit("spec/media", {"maxDecodedBytes": 1 << 30}),
        lambda document: document["spec"]["stages"][2].update(limits={"maxInflightBytes": 1 << 26}),
    ),
    "float32 with compressed tensors": (first(engineArgs={"dtype": "float32", "quantization": "compressed-tensors"}),),
    "sequences of two tokens": (first(engineArgs={"maxModelLen": 2}),),
    "a thousand replicas": (first(replicas=1000),),
    "a suspended pipeline": (first(replicas=0), edit("spec/suspend", True)),
    "weights that are random": (first(engineArgs={"loadFormat": "dummy"}),),
    "an image by its name alone": (first(image="omni"),),
    "an image of a registry on a port": (first(image="localhost:5000/a-b/c_d.e__f:1.0-RC"),),
    "an image by tag and digest": (first(image=f"Registry.Example/omni:1@sha256:{'0a' * 32}"),),
}
"""Case -> edits that make a pipeline which looks odd but is valid."""
