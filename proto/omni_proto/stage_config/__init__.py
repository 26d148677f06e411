"""StageConfig: the schema of the file that configures a stage server. Import all public names from here.

extra_args.py  further arguments of vLLM that the administrator may allow
settings.py  what the file shares with a stage of the OmniPipeline resource
file.py      the file as a whole, and how it is read

The operator writes the file to a ConfigMap, and `omnipipe run` writes it to a directory. The stage server reads it
once. Defaults are not written, so that a new optional field changes no existing file.
"""

from omni_proto.stage_config.extra_args import (
    EXTRA_NAME_PATTERN as EXTRA_NAME_PATTERN,
    EXTRA_VALUE_PATTERN as EXTRA_VALUE_PATTERN,
    ExtraEngineArgs as ExtraEngineArgs,
    parse_extra_arg as parse_extra_arg,
)
from omni_proto.stage_config.file import (
    SCHEMA_VERSION as SCHEMA_VERSION,
    DownstreamStage as DownstreamStage,
    InputEdge as InputEdge,
    Listen as Listen,
    ModelSource as ModelSource,
    ServerTls as ServerTls,
    StageConfig as StageConfig,
    StageConfigError as StageConfigError,
    Timeouts as Timeouts,
    load_stage_config as load_stage_config,
    parse_stage_config as parse_stage_config,
)
from omni_proto.stage_config.settings import (
    COMPONENT_PATTERN as COMPONENT_PATTERN,
    PARSER_PATTERN as PARSER_PATTERN,
    STAGE_NAME_PATTERN as STAGE_NAME_PATTERN,
    ClientCertificates as ClientCertificates,
    ComponentId as ComponentId,
    ConfigModel as ConfigModel,
    EdgeMode as EdgeMode,
    EngineArgs as EngineArgs,
    Limits as Limits,
    MediaLimits as MediaLimits,
    Modality as Modality,
    ParserName as ParserName,
    SamplingDefaults as SamplingDefaults,
    StageName as StageName,
    StructuredOutput as StructuredOutput,
    SystemPrompt as SystemPrompt,
)
