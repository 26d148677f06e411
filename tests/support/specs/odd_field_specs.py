"""Unusual pipelines that the type of a single field rejects, each with the hint that `omnipipe validate` gives."""

from __future__ import annotations

from typing import Any, Final

from support.specs.spec_edits import S0, Bad, Edit, edit, first


def _limits(**values: Any) -> Edit:
    return first(resources={"limits": values})


ODD_BAD_FIELDS: Final[dict[str, Bad]] = {
    "sequences of one token": Bad(
        (first(engineArgs={"maxModelLen": 1}),),
        f"{S0}.engineArgs.maxModelLen",
        "should be greater than or equal to 2",
        "must be at least 2, found 1",
    ),
    "temperature of 99": Bad(
        (first(defaultSampling={"temperature": 99}),),
        f"{S0}.defaultSampling.temperature",
        "should be less than or equal to 2",
        "must be at most 2, found 99",
    ),
    "dtype by vLLM's other name": Bad(
        (first(engineArgs={"dtype": "half"}),), f"{S0}.engineArgs.dtype", '"float16"', 'found "half"; half is float16'
    ),
    "dtype of weights for the KV cache": Bad(
        (first(engineArgs={"kvCacheDtype": "bf16"}),), f"{S0}.engineArgs.kvCacheDtype", '"fp8_e5m2"', 'found "bf16"'
    ),
    "parser with a capital": Bad(
        (first(engineArgs={"toolCallParser": "Hermes"}),),
        f"{S0}.engineArgs.toolCallParser",
        "should match",
        "must be the name of a parser of vLLM such as hermes: lower-case letters, digits, dashes and underscores",
    ),
    "blocks of seven tokens": Bad(
        (first(engineArgs={"blockSize": 7}),),
        f"{S0}.engineArgs.blockSize",
        "should be a multiple of 16",
        "must be a multiple of 16, found 7",
    ),
    "blocks of no tokens": Bad(
        (first(engineArgs={"blockSize": 0}),),
        f"{S0}.engineArgs.blockSize",
        "should be greater than or equal to 16",
        "must be at least 16, found 0",
    ),
    "half a cpu as a number": Bad(
        (_limits(cpu=0.5),), f"{S0}.resources.limits.cpu", "integer,string", "found 0.5; put quotes around 0.5"
    ),
    "secret with an empty part": Bad(
        (edit("spec/model/tokenSecretRef", {"name": "a..b"}),),
        "spec.model.tokenSecretRef.name",
        "should match",
        "must be the name of an object",
    ),
    "secret by its name alone": Bad(
        (edit("spec/model/tokenSecretRef", "hf-token"),),
        "spec.model.tokenSecretRef",
        "of type object",
        'must be a mapping, found "hf-token"; its keys are name, key',
    ),
    "share in percent": Bad(
        (first(engineArgs={"gpuMemoryUtilization": 90}),),
        f"{S0}.engineArgs.gpuMemoryUtilization",
        "less than or equal to 1",
        "must be at most 1, found 90; it is a share: 90 % is 0.9",
    ),
    "share in quotes": Bad(
        (first(engineArgs={"gpuMemoryUtilization": "0.9"}),),
        f"{S0}.engineArgs.gpuMemoryUtilization",
        "of type number",
        'found the text "0.9"; remove the quotes',
    ),
    "minutes": Bad(
        (edit("spec/timeouts", {"request": "5m"}),),
        "spec.timeouts.request",
        "of type number",
        'found the text "5m"; times are numbers of seconds, without a unit',
    ),
    "gibibytes of mebibytes": Bad(
        (first(engineArgs={"kvCacheMemoryMib": "8Gi"}),),
        f"{S0}.engineArgs.kvCacheMemoryMib",
        "of type integer",
        'found the text "8Gi"; give the number without a unit',
    ),
    "output in small letters": Bad(
        (first(outputs=["text"]),), f"{S0}.outputs[0]", '"Text", "Audio"', 'found "text"; did you mean Text?'
    ),
    "output without a list": Bad(
        (first(outputs="Text"),), f"{S0}.outputs", "of type array", 'must be a list, found "Text"; write [Text]'
    ),
    "mode of streaming": Bad(
        (lambda document: document["spec"]["stages"][1].update(inputs=[{"from": "thinker", "mode": "Streaming"}]),),
        "spec.stages[1].inputs[0].mode",
        '"Full", "Stream"',
        'found "Streaming"; did you mean Stream?',
    ),
    **{
        f"{field} of another system": Bad(
            (edit(f"spec/{path}", value),), f"spec.{shown}", f'unknown field "spec.{shown}"', f"unknown field; {hint}"
        )
        for field, path, shown, value, hint in (
            ("predictor", "predictor", "predictor", {}, "the parts of the model are listed under spec.stages"),
            ("resources", "resources", "resources", {}, "resources are set for each stage: stages[].resources"),
            ("probe", "stages/0/readinessProbe", "stages[0].readinessProbe", {}, "only the operator sets it"),
            ("scaling", "stages/0/minReplicas", "stages[0].minReplicas", 1, "pods follow the load by stages[].scaling"),
            ("service", "entry/serviceType", "entry.serviceType", "NodePort", "clients connect to the Service with"),
        )
    },
    "input without a space": Bad(
        (lambda document: document["spec"]["stages"][1].update(inputs=[{"from:thinker": None, "from": "thinker"}]),),
        "spec.stages[1].inputs[0].from:thinker",
        'unknown field "spec.stages[1].inputs[0].from:thinker"',
        "unknown field; YAML needs a space after the colon: KEY: VALUE",
    ),
    "tensor parallel size": Bad(
        (first(engineArgs={"tensorParallelSize": 2}),),
        f"{S0}.engineArgs.tensorParallelSize",
        "unknown field",
        'the GPU count is the tensor parallel size: resources.limits["nvidia.com/gpu"]',
    ),
}
"""Case -> a pipeline that the type of a single field rejects. `omnipipe validate` has another message."""
