"""Valid pipelines, each as edits of a base pipeline."""

from __future__ import annotations

from typing import Any, Final

from support.specs.spec_edits import (
    LETTERS,
    NGINX,
    Document,
    Edit,
    edit,
    first,
    node_affinity,
    pod_anti_affinity,
    second,
    stages,
    third,
)


def _reverse(document: Document) -> None:
    document["spec"]["stages"].reverse()


def _two_talkers(document: Document) -> None:
    document["spec"]["stages"] += [
        {"name": "talker2", "component": "qwen2_5_omni/talker", "inputs": [{"from": "thinker"}]},
        {"name": "wav2", "component": "qwen2_5_omni/token2wav", "inputs": [{"from": "talker2"}], "outputs": ["Audio"]},
    ]


_PLACEMENT: Final[dict[str, Any]] = {
    "image": "registry.example:5000/omni/omnipipeline@sha256:" + "0" * 64,
    "imagePullSecrets": [{"name": "pull"}, {"name": "pull.2"}],
    "runtimeClassName": "nvidia",
    "nodeSelector": {"nvidia.com/gpu.product": "H100"},
    "tolerations": [
        {"operator": "Exists"},
        {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
        {"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
    ],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                    {"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["31"]}]},
                    {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}]},
                ]
            }
        },
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"app": "x"}},
                    },
                }
            ]
        },
    },
    "priorityClassName": "high",
    "podLabels": {"team": "speech", "example.com/cost": "a"},
    "podAnnotations": {
        "example.com/note": "any text: at all",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
        "descheduler.alpha.kubernetes.io/prefer-no-eviction": "true",
    },
    "topology": [{"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 2}, {}],
}

_PODS: Final[dict[str, Any]] = {
    "imagePullPolicy": "Always",
    "env": [
        {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"},
        {"name": "EMPTY"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "hub.token", "optional": True}}},
        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "levels", "key": "level"}}},
        {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "OMP_NUM_THREADS", "value": "4"},
    ],
    "envFrom": [{"prefix": "APP_", "configMapRef": {"name": "app"}}, {"secretRef": {"name": "app", "optional": True}}],
    "volumes": [
        {"name": "ca", "configMap": {"name": "ca", "items": [{"key": "ca.crt", "path": "x/ca.crt", "mode": 292}]}},
        {"name": "licence", "secret": {"secretName": "licence", "defaultMode": 288}},
        {"name": "voices", "persistentVolumeClaim": {"claimName": "voices"}},
        {
            "name": "vault",
            "csi": {
                "driver": "secrets-store.csi.k8s.io",
                "readOnly": True,
                "volumeAttributes": {"secretProviderClass": "vault"},
                "nodePublishSecretRef": {"name": "vault"},
            },
        },
        {"name": "adapters", "image": {"reference": "registry.example/adapters:1", "pullPolicy": "IfNotPresent"}},
    ],
    "volumeMounts": [
        {"name": "ca", "mountPath": "/etc/ssl/certs/own.crt", "subPath": "x/ca.crt"},
        {"name": "voices", "mountPath": "/data/voices", "readOnly": True},
        {"name": "adapters", "mountPath": "/modelsandmore"},
    ],
    "serviceAccountName": "models",
    "podSecurityContext": {"runAsUser": 1000720000, "fsGroup": 1000720000, "supplementalGroups": [5000]},
    "schedulerName": "volcano",
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
    "podDisruptionBudget": {"minAvailable": "50%"},
    "shmSize": "8Gi",
    "compileCache": {"claimName": "kernels"},
    "startupSeconds": 5400,
    "terminationGracePeriodSeconds": 330,
}

_ENGINE: Final[dict[str, Any]] = {
    "maxModelLen": 8192,
    "maxNumSeqs": 8,
    "maxNumBatchedTokens": 8,
    "dtype": "bfloat16",
    "quantization": "awq",
    "kvCacheDtype": "fp8",
    "kvCacheMemoryMib": 8192,
    "gpuMemoryUtilization": 0.9,
    "enforceEager": False,
    "enablePrefixCaching": False,
    "loadFormat": "safetensors",
    "blockSize": 16,
}

_SAMPLING: Final[dict[str, Any]] = {
    "temperature": 0,
    "topP": 1,
    "topK": -1,
    "minP": 0.05,
    "repetitionPenalty": 1.1,
    "presencePenalty": -2,
    "frequencyPenalty": 2.0,
    "seed": 9223372036854656000,
    "maxTokens": 8,
    "minTokens": 8,
    "ignoreEos": True,
    "stopTokenIds": [0, 1],
    "stop": ["\n", "。"],
}

GOOD: Final[dict[str, tuple[Edit, ...]]] = {
    "base": (),
    "one stage": (stages("a"),),
    "stages in any order": (_reverse,),
    "two talkers": (_two_talkers,),
    "a tree": (stages("a b c", "a d", "b e"),),
    "a tree listed from its leaves": (stages("c", "b c", "a b"),),
    "chain of sixteen": (stages(" ".join(LETTERS[:16])),),
    "chain of sixteen, last one first": (stages(" ".join(LETTERS[:16])), _reverse),
    "metadata of a live object": (edit("metadata", {"name": "a-b", "generation": 3, "creationTimestamp": None}),),
    "labels and annotations": (
        edit("metadata/labels", {"example.com/Team": "a_b.c", "x": ""}),
        edit("metadata/annotations", {"Example.com/note": "any text: at all"}),
    ),
    "a status of anything that is known": (edit("status", {"readyStages": 5, "conditions": "none"}),),
    "nulls are as if they were not there": (
        first(image=None, replicas=None, podLabels={"a": None}, resources={"limits": {"cpu": None}}),
        lambda document: document["spec"].update(rollout=None, timeouts=None),
    ),
    "empty lists and objects": (first(inputs=[], tolerations=[], engineArgs={}, resources={}, affinity={}),),
    "name as long as fits": (edit("metadata/name", "x" * 44),),
    "pvc": (edit("spec/model/uri", "pvc://models/qwen/omni-7B"),),
    "pvc root": (edit("spec/model/uri", "pvc://models"),),
    "file": (edit("spec/model/uri", "file:///models/..omni"),),
    "hf with everything": (
        edit(
            "spec/model",
            {
                "uri": "hf://Qwen/Qwen2.5-Omni-7B",
                "revision": "refs/pr/1",
                "tokenSecretRef": {"name": "hf", "key": "TOKEN"},
                "cache": {"persistentVolumeClaim": "models"},
            },
        ),
    ),
    "folder of a repository": (edit("spec/model/uri", "hf://rhasspy/piper-voices/en/en_US/joe--2..1/medium.git"),),
    **{
        f"uri {uri[:40]}": (edit("spec/model", {"uri": uri, "tokenSecretRef": {"name": "x"}}),)
        for uri in (
            *("s3://bucket", "s3://my.bucket/team=a/omni-7b_v1.2", "gs://my_bucket/omni", "az://container/omni"),
            *("oci://ghcr.io/org/omni:v1.2", "oci://registry.example:5000/omni", f"oci://r/a/b__c@sha256:{'0' * 64}"),
        )
    },
    "a talker of its own": (second(model={"uri": "pvc://models/talker"}),),
    "every stage has a model of its own": (
        edit("spec/model", None),
        first(model={"uri": "hf://Qwen/Qwen2.5-Omni-7B", "revision": "v2", "tokenSecretRef": {"name": "hf"}}),
        second(model={"uri": "hf://org/talker", "cache": {"persistentVolumeClaim": "models"}}),
        third(model={"uri": "file:///models/wav"}),
    ),
    "gpu as number": (first(resources={"limits": {"nvidia.com/gpu": 8}}),),
    "gpu as text, requested too": (
        first(resources={"limits": {"nvidia.com/gpu": "64"}, "requests": {"nvidia.com/gpu": 64}}),
    ),
    "quantities": (
        first(
            resources={
                "limits": {"cpu": 2, "memory": "16Gi", "ephemeral-storage": "1.5Gi"},
                "requests": {"cpu": "500m", "memory": "16Gi"},
            }
        ),
    ),
    "requests without limits": (first(resources={"requests": {"cpu": "500m"}}),),
    "requests in other units": (
        first(resources={"limits": {"memory": "1Gi", "cpu": "1"}, "requests": {"memory": 1073741824, "cpu": "1000m"}}),
    ),
    "no replicas": (first(replicas=0),),
    "suspend": (edit("spec/suspend", True),),
    "placement of all stages": (edit("spec/defaults", _PLACEMENT),),
    "placement of one stage": (first(**_PLACEMENT),),
    "settings of all pods": (edit("spec/defaults", _PODS),),
    "settings of one stage's pods": (first(**_PODS, resources={"claims": [{"name": "gpu", "request": "big"}]}),),
    "mounts of a stage, volumes of all": (
        edit("spec/defaults", {"volumes": _PODS["volumes"]}),
        first(volumeMounts=_PODS["volumeMounts"]),
    ),
    "users of the platform": (edit("spec/defaults/podSecurityContext", {}),),
    "a budget of evictions": (first(podDisruptionBudget={"maxUnavailable": 0}),),
    "entry behind a load balancer": (
        edit(
            "spec/entry/service",
            {
                "type": "LoadBalancer",
                "loadBalancerClass": "service.k8s.aws/nlb",
                "annotations": {"service.beta.kubernetes.io/aws-load-balancer-scheme": "internal"},
            },
        ),
    ),
    "entry behind Gateways": (
        edit(
            "spec/entry/route",
            {
                "gatewayApi": {
                    "parentRefs": [
                        {"name": "a", "namespace": "infra", "sectionName": "grpc"},
                        {"name": "a", "namespace": "infra", "sectionName": "grpcs"},
                        {"name": "a", "port": 8443},
                    ],
                    "hostnames": ["omni.example.com", "*.omni.example.com", "localhost"],
                },
                "annotations": {"external-dns.alpha.kubernetes.io/ttl": "60"},
            },
        ),
    ),
    "entry behind a Gateway without GRPCRoute": (
        edit("spec/entry/route/gatewayApi", {"kind": "HTTPRoute", "parentRefs": [{"name": "a"}]}),
    ),
    "entry with a certificate behind a Gateway": (
        edit("spec/entry/tls", {"secretName": "omni-tls"}),
        edit(
            "spec/entry/route/gatewayApi",
            {
                "parentRefs": [{"name": "a"}],
                "backendTls": {
                    "hostname": "omni.example.com",
                    "caCertificateRefs": [{"name": "cas"}, {"kind": "Secret", "name": "omni-tls"}],
                },
            },
        ),
    ),
    "entry with a certificate behind ingress-nginx": (
        edit("spec/entry/tls", {"secretName": "omni-tls"}),
        edit("spec/entry/route", {"ingress": {"host": "a.example"}, "annotations": {NGINX: "GRPCS"}}),
    ),
    "entry with a certificate behind a controller that reads the Service": (
        edit("spec/entry/tls", {"secretName": "omni-tls"}),
        edit("spec/entry/service/annotations", {"projectcontour.io/upstream-protocol.tls": "50051"}),
        edit("spec/entry/route/ingress", {"host": "a.example"}),
    ),
    "entry behind an Ingress": (
        edit(
            "spec/entry/route/ingress",
            {"ingressClassName": "nginx", "host": "*.example.com", "tlsSecretName": "example-com"},
        ),
    ),
    "pods far from one another": (pod_anti_affinity({"matchExpressions": [{"key": "app", "operator": "Exists"}]}),),
    "node label absent": (node_affinity({"matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]}),),
    "engine arguments": (first(engineArgs=_ENGINE),),
    "extra engine arguments": (
        first(extraEngineArgs={"moe_backend": "auto", "optimization_level": 2, "cpu_offload_gb": "1.5"}),
        second(extraEngineArgs={"enable_expert_parallel": "true", "kv_offloading_size": 4}),
    ),
    "sampling": (
        first(defaultSampling=_SAMPLING),
        third(defaultSampling={"numInferenceSteps": 10, "guidanceScale": 0}),
    ),
    "limits and timeouts": (
        first(limits={"maxConcurrentRequests": 1, "maxInflightBytes": 1 << 40}, timeouts={"step": 0.5}),
        third(timeouts={"queue": 60}),
        edit("spec/timeouts/request", 86400),
    ),
    "entry without fields": (edit("spec/entry", {}),),
    "entry with a certificate": (edit("spec/entry", {"tls": {"secretName": "omni.tls"}}),),
    "entry that asks for certificates": (
        edit("spec/entry/tls", {"secretName": "omni-tls", "clientCertificates": "Required"}),
    ),
    "entry that does not ask for certificates": (
        edit("spec/entry/tls", {"secretName": "omni-tls", "clientCertificates": "Ignored"}),
    ),
    "a collector": (edit("spec/tracing", {"otlpEndpoint": "http://collector.observability.svc:4317"}),),
    "aliases": (
        edit(
            "spec/aliases",
            {
                "models": ["tts-1", "openai/gpt-4o:audio"],
                "voices": {"alloy": "Chelsie", "af_heart": "Ethan", "A b": "x.y"},
            },
        ),
    ),
    "aliases of a model of text": (
        stages("a"),
        edit("spec/stages/0/outputs", ["Text"]),
        edit("spec/aliases", {"models": ["x"], "voices": {}}),
    ),
    "recreate": (edit("spec/rollout", {"strategy": "Recreate", "maxSurge": "25%", "maxUnavailable": 1}),),
    "rollout without surge": (edit("spec/rollout", {"maxSurge": "0%", "maxUnavailable": "100%"}),),
}
