"""The OmniPipeline resource (v1alpha1): its types, how it is read, and how it compiles to stage configurations.

types/     pydantic models of the spec and of the status
rules/     rules that types cannot express, in CEL; some of them use the facts of components in components.py
read/      reads a pipeline from text, and runs the API server's checks without an API server
schema.py  the schema of the CustomResourceDefinition, which tools/export_schemas.py writes
compile.py compiles a pipeline to one StageConfig per stage
"""

from omni_proto.pipeline.compile import (
    ModelPathError as ModelPathError,
    compile_stages as compile_stages,
    describe_model as describe_model,
    devices_of as devices_of,
    gpus_of as gpus_of,
    is_accelerator as is_accelerator,
    order_stages as order_stages,
    outputs_from as outputs_from,
    readers_of as readers_of,
    resolve_model_paths as resolve_model_paths,
    stages_for_outputs as stages_for_outputs,
    stages_from as stages_from,
)
from omni_proto.pipeline.problems import (
    PipelineError as PipelineError,
    Problem as Problem,
)
from omni_proto.pipeline.read.load import (
    load_pipeline as load_pipeline,
    parse_pipeline as parse_pipeline,
    type_document as type_document,
    type_live_document as type_live_document,
)
from omni_proto.pipeline.types.entry import EntryTls as EntryTls
from omni_proto.pipeline.types.kubernetes import GPU_RESOURCES as GPU_RESOURCES
from omni_proto.pipeline.types.resource import (
    API_VERSION as API_VERSION,
    KIND as KIND,
    Model as Model,
    OmniPipeline as OmniPipeline,
    Stage as Stage,
)
