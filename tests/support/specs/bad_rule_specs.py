"""Invalid pipelines that a CEL rule rejects. The API server and `omnipipe` use the same messages."""

from __future__ import annotations

from typing import Final

from support.specs.spec_edits import (
    LETTERS,
    NGINX,
    S0,
    S1,
    TERM,
    Bad,
    edit,
    first,
    node_affinity,
    pod_anti_affinity,
    second,
    stages,
    third,
)

_RESERVED = "of the domains omnipipeline.io, kubernetes.io and k8s.io are reserved"
_CIRCLE = "stages read one another in a circle: "
_ANTI = f"{S0}.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector"


_CA = {"caCertificateRefs": [{"name": "cas"}]}
_EXTRA = f"{S0}.extraEngineArgs"

BAD_RULES: Final[dict[str, Bad]] = {
    "an extra argument by its flag": Bad(
        first(extraEngineArgs={"moe-backend": "auto"}), _EXTRA, 'such as attention_backend; found ["moe-backend"]'
    ),
    "an extra argument that loads code": Bad(
        first(extraEngineArgs={"trust_remote_code": "true"}),
        _EXTRA,
        'arguments that may not be given: ["trust_remote_code"]; allowed are attention_backend, ',
    ),
    "an extra number in words": Bad(
        first(extraEngineArgs={"optimization_level": "two"}), _EXTRA, '["optimization_level"] must be a whole number'
    ),
    "an extra size with a unit": Bad(
        first(extraEngineArgs={"cpu_offload_gb": "8Gi"}), _EXTRA, '["cpu_offload_gb"] must be a number'
    ),
    "an extra switch in words": Bad(
        first(extraEngineArgs={"skip_mm_profiling": "yes"}),
        _EXTRA,
        '["skip_mm_profiling"] must be "true" or "false", in quotes',
    ),
    "no entry": Bad(first(inputs=[{"from": "talker"}]), "spec.stages", "found 0 entry stages: []; exactly one"),
    "two entries": Bad(
        second(inputs=[]), "spec.stages", 'found 2 entry stages: ["thinker", "talker"]; exactly one stage, which reads'
    ),
    "input that does not exist": Bad(
        second(inputs=[{"from": "tinker"}]),
        "spec.stages",
        'inputs of ["talker"] name ["tinker"], which are not stages of this pipeline; there are: ["thinker", "talker", '
        '"token2wav"]',
    ),
    "a stage reads itself": Bad(second(inputs=[{"from": "talker"}]), "spec.stages", f'{_CIRCLE}["talker"]; let one of'),
    "circle of two": Bad(second(inputs=[{"from": "token2wav"}]), "spec.stages", f'{_CIRCLE}["talker", "token2wav"]'),
    "circle of fifteen": Bad(
        stages("a", f"{' '.join(LETTERS[1:16])} b"), "spec.stages", f'{_CIRCLE}["b", "c", "d", "e"'
    ),
    "circle beside a chain": Bad(stages("a b c d e f g h", "x y z x"), "spec.stages", f'{_CIRCLE}["x", "y", "z"]'),
    "circle with a tail": Bad(stages("a", "x y x", "y t u v"), "spec.stages", f'{_CIRCLE}["x", "y"]'),
    "a leaf returns nothing": Bad(
        third(outputs=[]), "spec.stages", 'nothing and that no stage reads: ["token2wav"]; declare outputs: [Text] or'
    ),
    "a transcript below the entry": Bad(
        third(component="acme/ears", outputs=["Transcript"]),
        "spec.stages",
        'stages ["token2wav"] return a Transcript, which is what the entry hears; declare outputs: [Text] there',
    ),
    "a system prompt for a stage that writes no answer": Bad(
        third(systemPrompt="Be brief."),
        "spec.stages[2].systemPrompt",
        "component qwen2_5_omni/token2wav takes no system prompt; remove it, and give it in the request's chat",
    ),
    "an answer and a transcript in one": Bad(
        first(component="acme/ears", outputs=["Text", "Transcript"]),
        f"{S0}.outputs",
        "a stage's text is either the answer or the transcript; leave Text or Transcript out",
    ),
    "a transcript of a model that answers": Bad(
        first(outputs=["Transcript"]),
        f"{S0}.outputs",
        'component qwen2_5_omni/thinker cannot return ["Transcript"]; it can return ["Text"]',
    ),
    "names too long together": Bad(
        edit("metadata/name", "x" * 45),
        "metadata.name",
        "may have 53 characters together, to fit the name of a Service; "
        'shorten metadata.name, or the stages ["token2wav"]',
    ),
    "name of a headless Service": Bad(
        edit("metadata/name", "omni-headless"),
        "metadata.name",
        "another pipeline's headless Service; give one that does",
    ),
    "aliases of voices without audio": Bad(
        (stages("a"), edit("spec/stages/0/outputs", ["Text"]), edit("spec/aliases", {"voices": {"alloy": "Chelsie"}})),
        "spec.aliases.voices",
        "no stage returns Audio, so there are no voices; remove aliases.voices, or declare outputs: [Audio]",
    ),
    "alias of a voice that begins with a space": Bad(
        edit("spec/aliases", {"voices": {" alloy": "Chelsie"}}),
        "spec.aliases.voices",
        "keys must be names of letters, digits, spaces, dots, dashes and underscores, beginning and ending with a",
    ),
    "no model": Bad(
        edit("spec/model", None),
        "spec.model",
        'is missing, and stages ["thinker", "talker", "token2wav"] have no model of their own; give spec.model, or',
    ),
    "no model of one stage": Bad(
        (edit("spec/model", None), first(model={"uri": "hf://a/b"}), third(model={"uri": "file:///models/c"})),
        "spec.model",
        'is missing, and stages ["talker"] have no model of their own',
    ),
    "uri of a stage's model leaves its root": Bad(
        second(model={"uri": "pvc://c/../d"}), f"{S1}.model.uri", "pvc://c/../d leaves its root through .."
    ),
    "cache of a stage's model on a volume": Bad(
        second(model={"uri": "pvc://c/d", "cache": {"persistentVolumeClaim": "x"}}),
        f"{S1}.model.cache",
        "cache has no meaning with pvc://c/d; remove it, or use a uri of hf://, s3://, gs://, az:// or oci://",
    ),
    "a variable of the operator": Bad(
        first(env=[{"name": "HF_HOME", "value": "/x"}]),
        f"{S0}.env[0].name",
        "HF_HOME is set by the operator and cannot be overridden; remove it",
    ),
    "a variable of the project": Bad(
        edit("spec/defaults/env", [{"name": "OMNI_X", "value": "1"}]), "spec.defaults.env[0].name", "cannot be over"
    ),
    "a variable with two values": Bad(
        first(env=[{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        f"{S0}.env[0].valueFrom",
        "A has a value and valueFrom; keep one",
    ),
    "a variable from two sources": Bad(
        first(
            env=[
                {
                    "name": "A",
                    "valueFrom": {
                        "secretKeyRef": {"name": "a", "key": "b"},
                        "configMapKeyRef": {"name": "a", "key": "b"},
                    },
                }
            ]
        ),
        f"{S0}.env[0].valueFrom",
        "2 of secretKeyRef, configMapKeyRef, fieldRef are set; set exactly one",
    ),
    "variables from nothing": Bad(
        first(envFrom=[{"prefix": "A_"}]), f"{S0}.envFrom[0]", "0 of configMapRef, secretRef are set"
    ),
    "a volume of the pod": Bad(
        first(volumes=[{"name": "tmp", "configMap": {"name": "a"}}]),
        f"{S0}.volumes[0].name",
        "tmp is the name of a volume of the pod itself; give another name",
    ),
    "a volume from nothing": Bad(
        first(volumes=[{"name": "a"}]),
        f"{S0}.volumes[0]",
        "0 of configMap, secret, persistentVolumeClaim, csi, image are set",
    ),
    **{
        f"a mount at {path}": Bad(
            first(
                volumes=[{"name": "a", "secret": {"secretName": "a"}}], volumeMounts=[{"name": "a", "mountPath": path}]
            ),
            f"{S0}.volumeMounts[0].mountPath",
            f"{path} belongs to the pod itself and cannot be covered; mount the volume at another path",
        )
        for path in ("/", "/etc", "/etc/omnipipeline/x", "/models", "/dev/shm", "/home/omni/.cache", "/tmp/a")  # noqa: S108
    },
    "a mount above the root": Bad(
        first(
            volumes=[{"name": "a", "secret": {"secretName": "a"}}],
            volumeMounts=[{"name": "a", "mountPath": "/a/../tmp"}],
        ),
        f"{S0}.volumeMounts[0].mountPath",
        "paths of volume a contain . or ..; give them without",
    ),
    "a mount of no volume": Bad(
        (
            edit("spec/defaults/volumes", [{"name": "a", "secret": {"secretName": "a"}}]),
            first(volumes=[], volumeMounts=[{"name": "a", "mountPath": "/data"}]),
        ),
        "spec.stages",
        'volumeMounts of ["thinker"] name volumes that do not exist; add them to volumes of the stage, or of defaults',
    ),
    "devices of no claim": Bad(
        first(resources={"claims": [{"name": "gpu"}]}),
        "spec.stages",
        'resources.claims of ["thinker"] name claims that do not exist; add them to resourceClaims of the stage, or of',
    ),
    "a claim from nothing": Bad(
        first(resourceClaims=[{"name": "gpu"}]),
        f"{S0}.resourceClaims[0]",
        "0 of resourceClaimName, resourceClaimTemplateName are set; set exactly one",
    ),
    "two bounds of a budget": Bad(
        first(podDisruptionBudget={"minAvailable": 1, "maxUnavailable": "50%"}),
        f"{S0}.podDisruptionBudget.minAvailable",
        "minAvailable and maxUnavailable are both set; keep one",
    ),
    "replicas and scaling": Bad(
        first(replicas=2, scaling={"maxReplicas": 3}),
        f"{S0}.scaling",
        "stage thinker has replicas and scaling; keep one",
    ),
    "scaling without an end": Bad(
        first(scaling={"minReplicas": 2}),
        f"{S0}.scaling.maxReplicas",
        "maxReplicas is missing; set the largest number of pods",
    ),
    "scaling from more to fewer": Bad(
        first(scaling={"minReplicas": 4, "maxReplicas": 3}),
        f"{S0}.scaling.minReplicas",
        "minReplicas (4) is above maxReplicas (3); lower it",
    ),
    "zero in one stage": Bad(
        first(scaling={"minReplicas": 0, "maxReplicas": 3}),
        "spec.stages",
        'a pipeline sleeps as a whole, because a request passes all stages; minReplicas is 0, but not in ["talker"',
    ),
    "an idle time that nothing waits for": Bad(
        first(scaling={"maxReplicas": 3, "idleSeconds": 60}),
        f"{S0}.scaling.idleSeconds",
        "idleSeconds has no effect unless minReplicas is 0",
    ),
    "scaling from outside, and bounds": Bad(
        first(scaling={"by": "External", "maxReplicas": 3}),
        f"{S0}.scaling.by",
        "by: External leaves the number to another autoscaler; set bounds and behavior there",
    ),
    "objectives that promise nothing": Bad(
        edit("spec/objectives", {"percentile": 99}), "spec.objectives", "nothing is promised; set firstAudioSeconds"
    ),
    **{
        f"a key's file at {path}": Bad(
            first(volumes=[{"name": "a", "configMap": {"name": "a", "items": [{"key": "k", "path": path}]}}]),
            f"{S0}.volumes[0].configMap.items[0].path",
            f"{path} begins with .. or has such a part, which Kubernetes refuses; give a path without it",
        )
        for path in ("..", "..data", "a/../b")
    },
    "an extended resource with the name of a quota": Bad(
        first(resources={"limits": {"requests.example.com/fpga": 1}}),
        f"{S0}.resources.limits",
        'resources that Kubernetes does not know: ["requests.example.com/fpga"]',
    ),
    "shared memory with a wrong unit": Bad(
        edit("spec/defaults/shmSize", "512m"),
        "spec.defaults.shmSize",
        "shmSize 512m is less than 1Mi; the number counts bytes, and m means a thousandth; write for example 8Gi",
    ),
    "shared memory of nothing": Bad(first(shmSize=0), f"{S0}.shmSize", "shmSize 0 is less than 1Mi"),
    "shared memory above the memory": Bad(
        first(shmSize="16Gi", resources={"limits": {"memory": "16Gi"}}),
        f"{S0}.shmSize",
        "shmSize 16Gi is not below resources.limits.memory 16Gi, towards which it counts; lower it",
    ),
    "a termination shorter than a request": Bad(
        first(terminationGracePeriodSeconds=329),
        "spec.stages",
        "terminationGracePeriodSeconds [329] is shorter than timeouts.request and 30 s, so pods would be killed",
    ),
    "a load balancer's class without one": Bad(
        edit("spec/entry/service", {"loadBalancerClass": "example.com/x"}),
        "spec.entry.service.loadBalancerClass",
        "loadBalancerClass needs type: LoadBalancer; set this type, or remove loadBalancerClass",
    ),
    "a reserved annotation of the entry": Bad(
        edit("spec/entry/service", {"annotations": {"omnipipeline.io/desired-hash": "x"}}),
        "spec.entry.service.annotations",
        'reserved: ["omnipipeline.io/desired-hash"]; use a domain of your own',
    ),
    "a reserved annotation of the route": Bad(
        edit("spec/entry/route", {"ingress": {"host": "a.example"}, "annotations": {"omnipipeline.io/x": ""}}),
        "spec.entry.route.annotations",
        'reserved: ["omnipipeline.io/x"]; use a domain of your own',
    ),
    "a route to nowhere": Bad(
        edit("spec/entry/route", {"annotations": {"a": "b"}}),
        "spec.entry.route",
        "0 of gatewayApi, ingress are set; set exactly one",
    ),
    "a route and an ingress": Bad(
        edit("spec/entry/route", {"gatewayApi": {"parentRefs": [{"name": "a"}]}, "ingress": {"host": "a.example"}}),
        "spec.entry.route",
        "2 of gatewayApi, ingress are set; set exactly one",
    ),
    "a Gateway that would speak plaintext": Bad(
        (
            edit("spec/entry/tls", {"secretName": "a"}),
            edit("spec/entry/route/gatewayApi", {"parentRefs": [{"name": "a"}]}),
        ),
        "spec.entry.route.gatewayApi",
        "Gateways must speak TLS to the pipeline; set route.gatewayApi.backendTls, or remove entry.tls",
    ),
    "a Gateway that would speak TLS to an entry without": Bad(
        edit("spec/entry/route/gatewayApi", {"parentRefs": [{"name": "a"}], "backendTls": _CA}),
        "spec.entry.route.gatewayApi.backendTls",
        "backendTls needs entry.tls, without which the pipeline speaks plaintext",
    ),
    "an Ingress that would speak plaintext": Bad(
        (edit("spec/entry/tls", {"secretName": "a"}), edit("spec/entry/route/ingress", {"host": "a.example"})),
        "spec.entry.route.ingress",
        f"set its annotation for that in route.annotations or service.annotations, e.g. {NGINX}: GRPCS",
    ),
    "ingress-nginx that would speak plaintext": Bad(
        (
            edit("spec/entry/tls", {"secretName": "a"}),
            edit("spec/entry/route", {"ingress": {"host": "a.example"}, "annotations": {NGINX: "GRPC"}}),
        ),
        "spec.entry.route.ingress",
        "the Ingress controller must speak TLS to the pipeline",
    ),
    "uri leaves its root": Bad(
        edit("spec/model/uri", "pvc://c/../d"),
        "spec.model.uri",
        "pvc://c/../d leaves its root through ..; give the path",
    ),
    "uri ends above its root": Bad(edit("spec/model/uri", "file:///models/.."), "spec.model.uri", "leaves its root"),
    **{
        f"{field} of {scheme}": Bad(
            edit("spec/model", {"uri": f"{scheme}://{path}", field: value}),
            f"spec.model.{field}",
            f"{field} has no meaning with {scheme}://{path}; remove it, or use a uri of hf://",
        )
        for field, value in {
            "revision": "main",
            "tokenSecretRef": {"name": "x"},
            "cache": {"persistentVolumeClaim": "x"},
        }.items()
        for scheme, path in {"file": "/models/x", "pvc": "models/x", "s3": "bucket", "oci": "host/x:1"}.items()
        if field == "revision" or scheme in ("file", "pvc")
    },
    "half a gpu": Bad(
        first(resources={"limits": {"nvidia.com/gpu": "500m"}}),
        f"{S0}.resources.limits",
        "500m GPUs are set; give a whole number from 1 to 64, or leave nvidia.com/gpu out to run on the CPU",
    ),
    "no gpu": Bad(first(resources={"limits": {"nvidia.com/gpu": 0}}), f"{S0}.resources.limits", "0 GPUs are set"),
    "65 gpus": Bad(first(resources={"limits": {"nvidia.com/gpu": "65"}}), f"{S0}.resources.limits", "65 GPUs are set"),
    "gpu request differs": Bad(
        first(resources={"limits": {"nvidia.com/gpu": 1}, "requests": {"nvidia.com/gpu": 2}}),
        f"{S0}.resources.requests",
        "2 GPUs are requested, which is not the limit; remove nvidia.com/gpu from requests, the limit is enough",
    ),
    "gpu request alone": Bad(
        first(resources={"requests": {"nvidia.com/gpu": 1}}), f"{S0}.resources.requests", "1 GPUs are requested"
    ),
    "requests above limits": Bad(
        first(resources={"limits": {"cpu": "1", "memory": "16Gi"}, "requests": {"cpu": "1500m", "memory": "17G"}}),
        f"{S0}.resources.requests",
        'requests are above the limits: ["cpu"]; lower them, or raise the limits',
    ),
    "resource key": Bad(
        first(resources={"limits": {"a b": 1}}),
        f"{S0}.resources.limits",
        'such as team or example.com/team; found ["a b"]',
    ),
    "label key": Bad(first(podLabels={"a b": "c"}), f"{S0}.podLabels", "keys must be such as team or example.com/team"),
    "node label key": Bad(
        edit("spec/defaults/nodeSelector", {"-a": "b"}), "spec.defaults.nodeSelector", 'found ["-a"]'
    ),
    "reserved label": Bad(
        first(podLabels={"omnipipeline.io/stage": "x"}),
        f"{S0}.podLabels",
        f'labels {_RESERVED}: ["omnipipeline.io/stage"]',
    ),
    "reserved label of defaults": Bad(
        edit("spec/defaults/podLabels", {"app.kubernetes.io/name": "x"}),
        "spec.defaults.podLabels",
        f"labels {_RESERVED}",
    ),
    "reserved annotation": Bad(
        edit(
            "spec/defaults/podAnnotations",
            {"a.kubernetes.io/x": "y", "cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
        ),
        "spec.defaults.podAnnotations",
        f'annotations {_RESERVED}: ["a.kubernetes.io/x"]; use a domain of your own',
    ),
    "toleration of nothing": Bad(
        first(tolerations=[{"value": "x"}]),
        f"{S0}.tolerations[0]",
        "key is missing; name the taint's key, or use operator",
    ),
    "toleration with a value too many": Bad(
        first(tolerations=[{"key": "a", "operator": "Exists", "value": "x"}]),
        f"{S0}.tolerations[0].value",
        "value x has no meaning with operator Exists; remove it",
    ),
    "toleration for a time of no effect": Bad(
        first(tolerations=[{"key": "a", "value": "b", "tolerationSeconds": 3}]),
        f"{S0}.tolerations[0].tolerationSeconds",
        "needs effect: NoExecute; set this effect, or remove tolerationSeconds",
    ),
    "node condition without values": Bad(
        node_affinity({"matchExpressions": [{"key": "zone", "operator": "In"}]}),
        TERM,
        "operator In of key zone needs values",
    ),
    "node condition with values too many": Bad(
        node_affinity({"matchExpressions": [{"key": "zone", "operator": "Exists", "values": ["a"]}]}),
        TERM,
        "operator Exists of key zone needs no values; remove them",
    ),
    "node condition compares with a word": Bad(
        node_affinity({"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["many"]}]}),
        TERM,
        "operator Gt of key cores compares with one whole number; give values: [NUMBER]",
    ),
    "node field": Bad(
        node_affinity({"matchFields": [{"key": "spec.unschedulable", "operator": "In", "values": ["a"]}]}),
        TERM.removesuffix(".matchExpressions[0].values") + ".matchFields",
        'wrong conditions on ["spec.unschedulable"]; the only field is metadata.name',
    ),
    "pod condition without values": Bad(
        pod_anti_affinity({"matchExpressions": [{"key": "app", "operator": "NotIn"}]}),
        f"{_ANTI}.matchExpressions[0].values",
        "operator NotIn of key app needs values; add at least one",
    ),
    "pod label key": Bad(pod_anti_affinity({"matchLabels": {"a b": "c"}}), f"{_ANTI}.matchLabels", 'found ["a b"]'),
    "fewer tokens than sequences": Bad(
        first(engineArgs={"maxNumSeqs": 8, "maxNumBatchedTokens": 4}),
        f"{S0}.engineArgs.maxNumBatchedTokens",
        "maxNumBatchedTokens (4) is below maxNumSeqs (8); raise it",
    ),
    "fewest tokens above most": Bad(
        first(defaultSampling={"minTokens": 9, "maxTokens": 8}),
        f"{S0}.defaultSampling.minTokens",
        "minTokens (9) is above maxTokens (8); lower it",
    ),
    "more tokens than fit": Bad(
        first(defaultSampling={"minTokens": 512}, engineArgs={"maxModelLen": 512}),
        f"{S0}.defaultSampling.minTokens",
        "minTokens (512) must be below maxModelLen (512), which also counts the prompt; lower it",
    ),
    "rollout stuck": Bad(
        edit("spec/rollout", {"maxSurge": "0%", "maxUnavailable": 0}),
        "spec.rollout",
        "maxSurge and maxUnavailable are both 0, so no pod could ever be replaced; raise one",
    ),
    "rollout stuck by the default": Bad(edit("spec/rollout", {"maxSurge": 0}), "spec.rollout", "are both 0, so no pod"),
}
"""Case -> a pipeline that a CEL rule rejects."""
