"""The OmniPipeline resource (v1alpha1): its types, how it is read, and how it compiles to stage configurations."""

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
from omni_proto.pipeline.kubernetes import GPU_RESOURCES
from omni_proto.pipeline.load import load_pipeline, parse_pipeline, type_document
from omni_proto.pipeline.problems import PipelineError, Problem
from omni_proto.pipeline.resource import API_VERSION, KIND, EntryTls, OmniPipeline, Stage

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
