"""Reads the form of the text from vLLM's parameters, and writes it back as xgrammar must get it.

Interfaces of vLLM 0.32: `StructuredOutputsParams` (sampling_params.py), and `choice_as_grammar`
(v1/structured_output/utils.py, private), with which vLLM's own check turns a choice into a grammar.
"""

from __future__ import annotations

import json
from typing import Any

from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output.utils import choice_as_grammar

from omni_stage.errors import InvalidRequestError
from omni_stage.forms.regex import UnsupportedRegexError, check_regex
from omni_stage.forms.schema import UnsupportedSchemaError, admit_schema
from omni_stage.forms.trial import Form


def read_params(params: StructuredOutputsParams, field: str) -> Form:
    """Returns the form that the engine will compile, and sets it in `params`.

    Raises InvalidRequestError with `field` if it holds something that would not be enforced.
    """
    try:
        return _read(params)
    except UnsupportedSchemaError as error:
        raise InvalidRequestError(str(error), field=field) from error
    except UnsupportedRegexError as error:
        raise InvalidRequestError(f"the regular expression cannot be enforced: {error}", field=field) from error


def _read(params: StructuredOutputsParams) -> Form:
    if params.json is not None:
        schema = json.loads(params.json) if isinstance(params.json, str) else params.json
        params.json = json.dumps(admit_schema(schema), ensure_ascii=False)
        return Form("json", params.json)
    if params.json_object:
        return Form("json_object", "")
    if params.regex is not None:
        params.regex = check_regex(params.regex, in_json=False)
        return Form("regex", params.regex)
    if params.choice is not None:
        params.grammar, params.choice = choice_as_grammar(list(params.choice)), None
    if params.grammar is not None:
        return Form("grammar", params.grammar)
    params.structural_tag = json.dumps(_admit_tags(json.loads(params.structural_tag or "{}")), ensure_ascii=False)
    return Form("structural_tag", params.structural_tag)


def _admit_tags(value: Any) -> Any:
    """Returns a part of a structural tag, with its schemas and expressions as xgrammar must get them."""
    if isinstance(value, list):
        return [_admit_tags(item) for item in value]
    if not isinstance(value, dict):
        return value
    read = {name: item if name in ("json_schema", "schema") else _admit_tags(item) for name, item in value.items()}
    for name in ("json_schema", "schema"):
        if isinstance(read.get(name), dict):
            read[name] = admit_schema(read[name])
    if read.get("type") == "regex" and isinstance(read.get("pattern"), str):
        read["pattern"] = check_regex(read["pattern"], in_json=False)
    return read
