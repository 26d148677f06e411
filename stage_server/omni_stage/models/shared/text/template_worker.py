"""A process that renders chat templates whose cost a caller may choose. Its parent may kill it.

`python -m omni_stage.models.shared.text.template_worker`: jobs arrive on stdin and answers leave on stdout, each as one
line of JSON. A job: {"template": text, "variables": {...}, "seconds": CPU seconds, "bytes": memory}. An answer:
{"text": ...} or {"error": name of the exception, "reason": the template's own sentence}. The process ends when its
parent does.

The environment of templates is that of transformers (utils/chat_template_utils.py). It is repeated here because this
process then starts in a tenth of the time, with a third of the memory; a test compares the two.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from omni_proto.runtime.process import confine, used_address_space


class TemplateTooSlowError(Exception):
    """The template takes more time than it may."""


def main() -> None:
    """Serve jobs until stdin ends."""
    confine()
    signal.signal(signal.SIGVTALRM, _stop)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What else is printed must not be read as an answer.
    os.dup2(2, 1)
    for line in sys.stdin:
        json.dump(run_job(json.loads(line)), answers)
        answers.write("\n")
        answers.flush()


def run_job(job: dict[str, Any]) -> dict[str, str]:
    """Returns the answer to a job."""
    base = used_address_space()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (base + int(job["bytes"]), hard))
    # A template cannot catch the exception that the signal raises. The parent ends what does not react to it.
    signal.setitimer(signal.ITIMER_VIRTUAL, float(job["seconds"]))
    try:
        return {"text": render(job["template"], job["variables"])}
    except Exception as error:  # noqa: BLE001 - a template is a program
        return describe_failure(error)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def render(template: str, variables: dict[str, Any]) -> str:
    """Returns a chat template's text. Raises any exception: a template is a program."""
    return compile_template(template).render(**variables)


class _Generation(jinja2.ext.Extension):
    """The block {% generation %}, which marks text of the assistant. Its content is rendered as usual."""

    tags: set[str] = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_show"), [], [], body).set_lineno(line)

    def _show(self, caller: Callable[[], str]) -> str:
        return caller()


@lru_cache
def compile_template(source: str) -> jinja2.Template:
    """Returns a chat template that is ready to render."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def describe_failure(error: Exception) -> dict[str, str]:
    """Returns the answer for a template that failed."""
    # A template's raise_exception raises exactly this class; the errors of Jinja itself are of its subclasses.
    reason = str(error) if type(error) is TemplateError else ""
    return {"error": type(error).__name__, "reason": reason}


def _stop(signal_number: int, frame: object) -> None:
    raise TemplateTooSlowError


if __name__ == "__main__":
    main()
