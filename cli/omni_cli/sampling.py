"""Sampling parameters on the command line: STAGE.KEY=VALUE with vLLM's names, checked against SamplingDefaults."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from omni_proto.stage_config import SamplingDefaults

_FORM = re.compile(r"^(?P<stage>[a-z][a-z0-9]*)\.(?P<key>[A-Za-z_]+)=(?P<value>.+)$", re.DOTALL)
_TEXT_LISTS = ("stop",)


class SamplingOptionError(ValueError):
    """An option does not have the form STAGE.KEY=VALUE, names no sampling parameter, is repeated, or has a wrong
    value."""


def parse_sampling(options: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the sampling parameters by stage, with the types of SamplingDefaults.

    A list is a JSON list, or comma-separated; `stop` without brackets is one string. Raises SamplingOptionError, which
    names the option and the problem.
    """
    sampling: dict[str, dict[str, Any]] = {}
    for option in options:
        match = _FORM.match(option)
        if match is None:
            raise SamplingOptionError(f"--sampling {option}: give it as STAGE.KEY=VALUE, e.g. thinker.temperature=0.7")
        stage, key, text = match["stage"], match["key"], match["value"]
        known = SamplingDefaults.model_fields
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise SamplingOptionError(f"--sampling {option}: {key} is not a sampling parameter; {hint}")
        if key in sampling.get(stage, {}):
            raise SamplingOptionError(f"--sampling {option}: {stage}.{key} is given twice")
        sampling.setdefault(stage, {})[key] = _parse_value(option, key, text)
    return sampling


def _parse_value(option: str, key: str, text: str) -> Any:
    value: object = text
    if "list" in str(SamplingDefaults.model_fields[key].annotation):
        value = _parse_list(option, text, as_text=key in _TEXT_LISTS)
    try:
        return getattr(SamplingDefaults.model_validate({key: value}, by_name=True), key)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        raise SamplingOptionError(f"--sampling {option}: {reason[:1].lower() + reason[1:]}") from error


def _parse_list(option: str, text: str, *, as_text: bool) -> list[Any]:
    if not text.startswith("["):
        return [text] if as_text else text.split(",")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SamplingOptionError(f"--sampling {option}: not a JSON list: {error}") from error
    if not isinstance(value, list):
        raise SamplingOptionError(f"--sampling {option}: not a JSON list")
    return value
