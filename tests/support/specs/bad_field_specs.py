"""Invalid pipelines that the type of a single field rejects.

The API server and `omnipipe` often use different messages.
"""

from __future__ import annotations

from typing import Final

from support.specs.spec_edits import LETTERS, S0, S1, S2, Bad, edit, first, second, stages, third

URI = (
    "must be hf://ORG/NAME[/FOLDER], s3://, gs:// or az://BUCKET[/PATH], oci://HOST/NAME[:TAG], pvc://CLAIM/PATH or "
    "file:///PATH"
)
_STAGE_NAME = "must be lower-case letters and digits, beginning with a letter"
_COMPONENT = "must be an id of the stage server's registry such as qwen2_5_omni/thinker, never a Python path"


def _unknown(field: str, offline: str, *edits: object) -> Bad:
    return Bad(tuple(edits), field, f'unknown field "{field}"', offline)  # type: ignore[arg-type]


def _missing(field: str, *edits: object) -> Bad:
    return Bad(tuple(edits), field, "Required value", "is missing")  # type: ignore[arg-type]


BAD_FIELDS: Final[dict[str, Bad]] = {
    "name with capitals": Bad(edit("metadata/name", "Omni"), "metadata.name", "a lowercase RFC 1123", "must be low"),
    "name with a dot": Bad(edit("metadata/name", "a.b"), "metadata.name", "must be lower-case letters, digits and"),
    "name begins with a digit": Bad(
        edit("metadata/name", "1a"), "metadata.name", "letter, because Services get this name; found 1a"
    ),
    "name too long": Bad(edit("metadata/name", "x" * 64), "metadata.name", "more than 63", "has 64 characters"),
    "label": Bad(edit("metadata/labels", {"a b": "c"}), "metadata.labels", '"a b"', "must be a key such as team"),
    "no spec": _missing("spec", edit("spec", None)),
    "no uri": _missing("spec.model.uri", edit("spec/model", {})),
    "no uri of a stage's model": _missing(f"{S1}.model.uri", second(model={"revision": "v2"})),
    "uri of a stage's model without scheme": Bad(
        second(model={"uri": "org/talker"}), f"{S1}.model.uri", f"{URI}; found org/talker"
    ),
    "no stages": _missing("spec.stages", edit("spec/stages", None)),
    "no stage name": _missing(f"{S0}.name", edit("spec/stages/0/name", None)),
    "no component": _missing(f"{S0}.component", edit("spec/stages/0/component", None)),
    "input without stage": _missing(f"{S1}.inputs[0].from", second(inputs=[{"mode": "Full"}])),
    "secret without name": _missing("spec.model.tokenSecretRef.name", edit("spec/model/tokenSecretRef", {})),
    "cache without claim": _missing("spec.model.cache.persistentVolumeClaim", edit("spec/model/cache", {})),
    "a volume that pods could write to": Bad(
        first(volumes=[{"name": "a", "persistentVolumeClaim": {"claimName": "a", "readOnly": False}}]),
        f"{S0}.volumes[0].persistentVolumeClaim.readOnly",
        "Unsupported value: false",
        "must be one of true; found false",
    ),
    "a directory of the node": _unknown(
        f"{S0}.volumes[0].hostPath",
        "unknown field; known here: name, configMap, secret, persistentVolumeClaim, csi, image",
        first(volumes=[{"name": "a", "hostPath": {"path": "/"}}]),
    ),
    "a prefix that no variable begins with": Bad(
        first(envFrom=[{"prefix": "9A=", "secretRef": {"name": "a"}}]),
        f"{S0}.envFrom[0].prefix",
        "should match",
        "must be the beginning of a variable's name: letters, digits, dashes, dots and underscores, but no",
    ),
    "a request of a claim that has no such name": Bad(
        first(
            resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}],
            resources={"claims": [{"name": "gpu", "request": "Big_1"}]},
        ),
        f"{S0}.resources.claims[0].request",
        "should match",
        "must be a name of lower-case letters, digits and dashes",
    ),
    "root": Bad(
        first(podSecurityContext={"runAsUser": 0}),
        f"{S0}.podSecurityContext.runAsUser",
        "should be greater than or equal to 1",
        "must be at least 1, found 0",
    ),
    "a variable twice": Bad(
        first(env=[{"name": "A"}, {"name": "A"}]), f"{S0}.env[1]", "Duplicate value", 'repeats name "A"'
    ),
    "collector without a port": Bad(
        edit("spec/tracing", {"otlpEndpoint": "http://collector"}),
        "spec.tracing.otlpEndpoint",
        "must be an address with its port (1 to 65535) such as http://collector.observability.svc:4317; found http",
    ),
    "model alias with a space": Bad(
        edit("spec/aliases", {"models": ["tts 1"]}),
        "spec.aliases.models[0]",
        "should match",
        "must be a name such as tts-1 or org/model, found",
    ),
    "model alias twice": Bad(
        edit("spec/aliases", {"models": ["tts-1", "tts-1"]}),
        "spec.aliases.models[1]",
        "Duplicate value",
        'repeats "tts-1"; each may be there once',
    ),
    "voice without a name": Bad(
        edit("spec/aliases", {"voices": {"alloy": ""}}),
        "spec.aliases.voices.alloy",
        "at least 1 chars long",
        "must not be empty",
    ),
    "too many aliases": Bad(
        edit("spec/aliases", {"models": [f"m{n}" for n in range(17)]}),
        "spec.aliases.models",
        "must have at most 16 items",
        "has 17 items; at most 16 are allowed",
    ),
    "unknown field of the object": _unknown("spce", "unknown field; did you mean spec?", edit("spce", {})),
    "unknown field of metadata": _unknown("metadata.nmae", "did you mean name?", edit("metadata/nmae", "x")),
    "unknown field of spec": _unknown("spec.stags", "did you mean stages?", edit("spec/stags", [])),
    "snake case": _unknown(
        f"{S0}.engineArgs.max_model_len", "did you mean maxModelLen?", first(engineArgs={"max_model_len": 1})
    ),
    "an escape hatch": _unknown(
        f"{S0}.engineArgs.trustRemoteCode", "known here: maxModelLen", first(engineArgs={"trustRemoteCode": True})
    ),
    "host path": _unknown(f"{S0}.hostPath", "unknown field", first(hostPath="/")),
    "a token of the service account": _unknown(
        f"{S0}.automountServiceAccountToken", "unknown field", first(automountServiceAccountToken=True)
    ),
    "security context": _unknown(
        "spec.defaults.securityContext", "unknown field", edit("spec/defaults/securityContext", {})
    ),
    "scaling by another project's name": _unknown(f"{S0}.scaling.max", "unknown field", first(scaling={"max": 2})),
    "unknown field of a status": _unknown("status.redy", "unknown field", edit("status", {"redy": True})),
    "uri without scheme": Bad(edit("spec/model/uri", "Qwen/X"), "spec.model.uri", f"{URI}; found Qwen/X"),
    "uri with http": Bad(edit("spec/model/uri", "http://x/y"), "spec.model.uri", URI),
    "hf uri without name": Bad(edit("spec/model/uri", "hf://Qwen"), "spec.model.uri", URI),
    "file uri of a relative path": Bad(edit("spec/model/uri", "file://x"), "spec.model.uri", URI),
    "uri with a space": Bad(edit("spec/model/uri", "file:///a b"), "spec.model.uri", URI),
    "uri of two lines": Bad(edit("spec/model/uri", "file:///a\nb"), "spec.model.uri", URI),
    "uri too long": Bad(edit("spec/model/uri", "file:///" + "x" * 512), "spec.model.uri", "than 512", "520 characters"),
    "uri empty": Bad(edit("spec/model/uri", ""), "spec.model.uri", "at least 1 chars", "must not be empty"),
    "revision is a number": Bad(
        edit("spec/model/revision", 12), "spec.model.revision", "of type string", "must be text; put quotes around 12"
    ),
    "claim with capitals": Bad(
        edit("spec/model/cache", {"persistentVolumeClaim": "Models"}),
        "spec.model.cache.persistentVolumeClaim",
        "should match",
        "must be the name of an object",
    ),
    "stage list empty": Bad(edit("spec/stages", []), "spec.stages", "at least 1 item", "at least 1 is needed"),
    "17 stages": Bad(stages(" ".join(LETTERS)), "spec.stages", "at most 16", "has 17 items; at most 16"),
    "stages as a mapping": Bad(edit("spec/stages", {}), "spec.stages", "of type array", "must be a list"),
    "stage is null": Bad(edit("spec/stages", [None]), S0, "of type object", "must be a mapping, found null"),
    "stage name with a dash": Bad(third(name="to-wav"), f"{S2}.name", f"{_STAGE_NAME}; found to-wav"),
    "stage name with a capital": Bad(third(name="Wav"), f"{S2}.name", _STAGE_NAME),
    "stage name begins with a digit": Bad(third(name="2wav"), f"{S2}.name", _STAGE_NAME),
    "stage name too long": Bad(third(name="x" * 21), f"{S2}.name", "more than 20", "has 21 characters; at most 20"),
    "stage name is a number": Bad(third(name=1), f"{S2}.name", "of type string", "put quotes around 1"),
    "component as Python path": Bad(first(component="my.module:Class"), f"{S0}.component", _COMPONENT),
    "component without family": Bad(first(component="llm"), f"{S0}.component", f"{_COMPONENT}; found llm"),
    "component leaves its folder": Bad(first(component="../llm"), f"{S0}.component", _COMPONENT),
    "replicas as text": Bad(
        first(replicas="2"), f"{S0}.replicas", "of type integer", 'a whole number, found the text "2"'
    ),
    "replicas below zero": Bad(
        first(replicas=-1), f"{S0}.replicas", "greater than or equal to 0", "at least 0, found -1"
    ),
    "replicas above 1000": Bad(first(replicas=1001), f"{S0}.replicas", "less than or equal to 1000", "at most 1000"),
    "replicas with a half": Bad(first(replicas=1.5), f"{S0}.replicas", "of type integer", "a whole number, found 1.5"),
    "two inputs": Bad(
        third(inputs=[{"from": "talker"}, {"from": "thinker"}]), f"{S2}.inputs", "at most 1", "at most 1 are allowed"
    ),
    "tls without secret": _missing("spec.entry.tls.secretName", edit("spec/entry", {"tls": {}})),
    "tls secret that is no name": Bad(
        edit("spec/entry/tls", {"secretName": "Omni_TLS"}),
        "spec.entry.tls.secretName",
        "should match",
        "must be the name of an object",
    ),
    "tls of a reference": _unknown(
        "spec.entry.tls.secretRef",
        "did you mean secretName?",
        edit("spec/entry/tls", {"secretName": "a", "secretRef": {"name": "a"}}),
    ),
    "tls certificate written here": _unknown(
        "spec.entry.tls.certificate", "unknown field", edit("spec/entry/tls", {"secretName": "a", "certificate": "x"})
    ),
    "client certificates of an unknown mode": Bad(
        edit("spec/entry/tls", {"secretName": "a", "clientCertificates": "Optional"}),
        "spec.entry.tls.clientCertificates",
        '"Ignored", "Required"',
    ),
    "mode that does not exist": Bad(
        second(inputs=[{"from": "thinker", "mode": "stream"}]), f"{S1}.inputs[0].mode", '"Full", "Stream"'
    ),
    "output that does not exist": Bad(first(outputs=["Video"]), f"{S0}.outputs[0]", '"Text", "Audio"'),
    "output twice": Bad(
        first(outputs=["Text", "Text"]), f"{S0}.outputs[1]", 'Duplicate value: "Text"', 'repeats "Text"'
    ),
    "same name twice": Bad(third(name="thinker"), S2, "Duplicate value", 'repeats name "thinker"'),
    "pull secret twice": Bad(
        first(imagePullSecrets=[{"name": "a"}, {"name": "a"}]),
        f"{S0}.imagePullSecrets[1]",
        "Duplicate value",
        'repeats name "a"',
    ),
    "topology twice": Bad(
        first(topology=[{}, {"topologyKey": "kubernetes.io/hostname"}]),
        f"{S0}.topology[1]",
        "Duplicate value",
        'repeats topologyKey "kubernetes.io/hostname"',
    ),
    "dtype that does not exist": Bad(first(engineArgs={"dtype": "int4"}), f"{S0}.engineArgs.dtype", '"bfloat16"'),
    "quantization that does not exist": Bad(
        first(engineArgs={"quantization": "AWQ"}), f"{S0}.engineArgs.quantization", '"awq"'
    ),
    "gpu share above 1": Bad(
        first(engineArgs={"gpuMemoryUtilization": 1.5}),
        f"{S0}.engineArgs.gpuMemoryUtilization",
        "less than or equal to 1",
        "must be at most 1, found 1.5",
    ),
    "gpu share 0": Bad(
        first(engineArgs={"gpuMemoryUtilization": 0}),
        f"{S0}.engineArgs.gpuMemoryUtilization",
        "greater than 0",
        "must be above 0, found 0",
    ),
    "eager as text": Bad(
        first(engineArgs={"enforceEager": "yes"}), f"{S0}.engineArgs.enforceEager", "of type boolean", "true or false"
    ),
    "model length 0": Bad(
        first(engineArgs={"maxModelLen": 0}), f"{S0}.engineArgs.maxModelLen", "or equal to 2", "at least 2"
    ),
    "top_p 0": Bad(first(defaultSampling={"topP": 0}), f"{S0}.defaultSampling.topP", "greater than 0", "above 0"),
    "seed beyond what JSON numbers hold": Bad(
        first(defaultSampling={"seed": 2**63}), f"{S0}.defaultSampling.seed", "less than or equal to", "at most 922337"
    ),
    "stop token below 0": Bad(
        first(defaultSampling={"stopTokenIds": [-1]}),
        f"{S0}.defaultSampling.stopTokenIds[0]",
        "equal to 0",
        "at least 0",
    ),
    "stop text empty": Bad(
        first(defaultSampling={"stop": [""]}), f"{S0}.defaultSampling.stop[0]", "at least 1 chars", "must not be empty"
    ),
    "no concurrent requests": Bad(
        first(limits={"maxConcurrentRequests": 0}), f"{S0}.limits.maxConcurrentRequests", "or equal to 1", "at least 1"
    ),
    "step timeout 0": Bad(first(timeouts={"step": 0}), f"{S0}.timeouts.step", "greater than 0", "above 0, found 0"),
    "request timeout 0": Bad(
        edit("spec/timeouts", {"request": 0}), "spec.timeouts.request", "greater than 0", "above 0"
    ),
    "quantity": Bad(
        first(resources={"limits": {"memory": "16 GB"}}),
        f"{S0}.resources.limits.memory",
        "should match",
        'must be a quantity such as 2, 500m or 16Gi, found "16 GB"',
    ),
    "quantity below 0": Bad(
        first(resources={"limits": {"cpu": -1}}), f"{S0}.resources.limits.cpu", "or equal to 0", "at least 0, found -1"
    ),
    "quantity with a half": Bad(
        first(resources={"limits": {"cpu": 1.5}}),
        f"{S0}.resources.limits.cpu",
        "must be of type integer,string",
        "must be a whole number or text, found 1.5",
    ),
    "image with a space": Bad(first(image="my image"), f"{S0}.image", "must be the name of an image such as registry"),
    "label value": Bad(first(podLabels={"a": "b c"}), f"{S0}.podLabels.a", "should match", "must be a short text"),
    "label value is a number": Bad(
        first(podLabels={"a": 1}), f"{S0}.podLabels.a", "of type string", "put quotes around 1"
    ),
    "33 labels": Bad(
        first(podLabels={f"a{number}": "" for number in range(33)}),
        f"{S0}.podLabels",
        "most 32",
        "has 33 keys; at most 32",
    ),
    "an address as a route's host": Bad(
        edit("spec/entry/route/ingress", {"host": "192.0.2.1"}),
        "spec.entry.route.ingress.host",
        "should match",
        "must be a host name such as voice.example.com or *.example.com, in lower case, and no IP address",
    ),
    "a route without Gateways": Bad(
        edit("spec/entry/route/gatewayApi", {"parentRefs": []}), "spec.entry.route.gatewayApi.parentRefs", "at least 1"
    ),
    "rollout share": Bad(
        edit("spec/rollout", {"maxSurge": "110%"}),
        "spec.rollout.maxSurge",
        "should match",
        "must be a percentage such as 25%",
    ),
    "rollout above 64": Bad(
        edit("spec/rollout", {"maxSurge": 65}), "spec.rollout.maxSurge", "equal to 64", "at most 64"
    ),
    "rollout strategy": Bad(
        edit("spec/rollout/strategy", "Canary"), "spec.rollout.strategy", '"BlueGreen", "Recreate"'
    ),
    "suspend as text": Bad(
        edit("spec/suspend", "yes"), "spec.suspend", "of type boolean", "true or false, found the text"
    ),
    "toleration effect": Bad(
        first(tolerations=[{"key": "a", "effect": "Never"}]), f"{S0}.tolerations[0].effect", '"NoSchedule"'
    ),
    "weight above 100": Bad(
        first(
            affinity={
                "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 101, "preference": {}}]}
            }
        ),
        f"{S0}.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight",
        "equal to 100",
        "at most 100",
    ),
}
"""Case -> a pipeline that the type of a single field rejects."""
