"""StageConfig: the schema of the file that configures a stage server. Import all public names from here.

settings.py  what the file shares with a stage of the OmniPipeline resource
file.py      the file as a whole, and how it is read

The operator writes the file to a ConfigMap, and `omnipipe run` writes it to a directory. The stage server reads it
once. Defaults are not written, so that a new optional field changes no existing file.
"""

from omni_proto.stage_config.file import (
    SCHEMA_VERSION,
    DownstreamStage,
    InputEdge,
    Listen,
    ModelSource,
    ServerTls,
    StageConfig,
    StageConfigError,
    Timeouts,
    load_stage_config,
    parse_stage_config,
)
from omni_proto.stage_config.settings import (
    COMPONENT_PATTERN,
    PARSER_PATTERN,
    STAGE_NAME_PATTERN,
    ClientCertificates,
    ComponentId,
    ConfigModel,
    EdgeMode,
    EngineArgs,
    Limits,
    MediaLimits,
    Modality,
    ParserName,
    SamplingDefaults,
    StageName,
    StructuredOutput,
)

__all__ = [
    "COMPONENT_PATTERN",
    "PARSER_PATTERN",
    "SCHEMA_VERSION",
    "STAGE_NAME_PATTERN",
    "ClientCertificates",
    "ComponentId",
    "ConfigModel",
    "DownstreamStage",
    "EdgeMode",
    "EngineArgs",
    "InputEdge",
    "Limits",
    "Listen",
    "MediaLimits",
    "Modality",
    "ModelSource",
    "ParserName",
    "SamplingDefaults",
    "ServerTls",
    "StageConfig",
    "StageConfigError",
    "StageName",
    "StructuredOutput",
    "Timeouts",
    "load_stage_config",
    "parse_stage_config",
]
