"""The OmniPipeline resource (v1alpha1): its types, how it is read, and how it compiles to stage configurations.

types/     pydantic models of the spec and of the status
rules/     what types cannot say, in CEL; components.py holds the facts of components that some of them judge by
read/      from text to a pipeline, and the API server's checks without an API server
crd/       the CustomResourceDefinition and the reference page, generated
compile.py a pipeline -> one StageConfig a stage
"""

from omni_proto.pipeline.compile import (
    ModelPathError,
    compile_stages,
    gpus_of,
    order_stages,
    outputs_from,
    readers_of,
    resolve_model_path,
    stages_for_outputs,
    stages_from,
)
from omni_proto.pipeline.problems import PipelineError, Problem
from omni_proto.pipeline.read.load import load_pipeline, parse_pipeline, type_document
from omni_proto.pipeline.types.kubernetes import GPU_RESOURCES
from omni_proto.pipeline.types.resource import API_VERSION, KIND, EntryTls, OmniPipeline, Stage

__all__ = [
    "API_VERSION",
    "GPU_RESOURCES",
    "KIND",
    "EntryTls",
    "ModelPathError",
    "OmniPipeline",
    "PipelineError",
    "Problem",
    "Stage",
    "compile_stages",
    "gpus_of",
    "load_pipeline",
    "order_stages",
    "outputs_from",
    "parse_pipeline",
    "readers_of",
    "resolve_model_path",
    "stages_for_outputs",
    "stages_from",
    "type_document",
]
