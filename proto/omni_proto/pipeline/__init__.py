"""The OmniPipeline resource (v1alpha1): its types, how it is read, and how it compiles to stage configurations.

types/     pydantic models of the spec and of the status
rules/     rules that types cannot express, in CEL; some of them use the facts of components in components.py
read/      reads a pipeline from text, and runs the API server's checks without an API server
crd/       generates the CustomResourceDefinition and the reference page
compile.py compiles a pipeline to one StageConfig per stage
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
from omni_proto.pipeline.read.load import load_pipeline, parse_pipeline, type_document, type_live_document
from omni_proto.pipeline.types.entry import EntryTls
from omni_proto.pipeline.types.kubernetes import GPU_RESOURCES
from omni_proto.pipeline.types.resource import API_VERSION, KIND, OmniPipeline, Stage

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
    "type_live_document",
]
