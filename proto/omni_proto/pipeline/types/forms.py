"""Descriptions of text patterns in words, for messages and for the reference page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from omni_proto.pipeline.types import entry, kubernetes as k8s, pods, resource as api
from omni_proto.stage_config import (
    COMPONENT_PATTERN,
    EXTRA_NAME_PATTERN,
    EXTRA_VALUE_PATTERN,
    PARSER_PATTERN,
    STAGE_NAME_PATTERN,
)

KEY_FORM: Final = "such as team or example.com/team"
_VOICE: Final = "letters, digits, spaces, dots, dashes and underscores, beginning and ending with a letter or digit"

FORMS: Final[Mapping[str, str]] = {
    api.URI_PATTERN: "hf://ORG/NAME[/FOLDER], s3://, gs:// or az://BUCKET[/PATH], oci://HOST/NAME[:TAG], "
    "pvc://CLAIM/PATH or file:///PATH",
    k8s.IMAGE_PATTERN: "the name of an image such as registry.example/omnipipeline:0.1.0",
    api.NAME_PATTERN: "lower-case letters, digits and dashes, beginning with a letter, because Services get this name",
    STAGE_NAME_PATTERN: "lower-case letters and digits, beginning with a letter",
    COMPONENT_PATTERN: "an id of the stage server's registry such as qwen2_5_omni/thinker, never a Python path",
    PARSER_PATTERN: "the name of a parser of vLLM such as hermes: lower-case letters, digits, dashes and underscores",
    EXTRA_VALUE_PATTERN: "a number, true or false in quotes, or a word of vLLM",
    api.REVISION_PATTERN: "a branch, tag or commit such as main, v1.2 or refs/pr/1: parts of letters, digits, "
    "dashes and underscores, joined by single dots or slashes",
    k8s.DATA_KEY_PATTERN: "a key of a Secret or ConfigMap: letters, digits, dots, dashes and underscores",
    k8s.NAMESPACE_PATTERN: "the name of a namespace: lower-case letters, digits and dashes, with a letter or digit at "
    "both ends",
    k8s.NAME_IN_POD_PATTERN: "a name of lower-case letters, digits and dashes, with a letter or digit at both ends",
    pods.VARIABLE_PATTERN: "the name of a variable: letters, digits and underscores, not beginning with a digit",
    pods.PREFIX_PATTERN: "the beginning of a variable's name: letters, digits, dashes, dots and underscores, but no "
    "digit at first",
    pods.PATH_PATTERN: "an absolute path such as /etc/ssl/certs, without a slash at its end",
    pods.RELATIVE_PATTERN: "a relative path such as ca.crt or certs/ca.crt",
    k8s.QUANTITY_PATTERN: "a quantity such as 2, 500m or 16Gi",
    k8s.LABEL_KEY_PATTERN: f"a key {KEY_FORM}",
    k8s.LABEL_VALUE_PATTERN: "a short text of letters, digits, dashes, dots and underscores",
    k8s.SUBDOMAIN_PATTERN: "the name of an object: lower-case letters, digits, dashes and dots",
    k8s.PERCENT_PATTERN: "a percentage such as 25%, or a whole number without quotes",
    api.MODEL_ALIAS_PATTERN: "a name such as tts-1 or org/model",
    entry.HOST_PATTERN: "a host name such as voice.example.com or *.example.com, in lower case, and no IP address",
    api.OTLP_PATTERN: "an address with its port (1 to 65535) such as http://collector.observability.svc:4317",
    api.VOICE_PATTERN: f"a name of {_VOICE}",
}
"""Descriptions by pattern."""

KEY_FORMS: Final[Mapping[str, str]] = {
    k8s.LABEL_KEY_PATTERN: KEY_FORM,
    api.VOICE_PATTERN: f"names of {_VOICE}",
    EXTRA_NAME_PATTERN: "names of arguments of vLLM such as attention_backend",
}
"""Descriptions of the keys of maps, by pattern."""
