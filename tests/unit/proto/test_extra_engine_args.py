"""extraEngineArgs: a closed list, held to the arguments that the installed vLLM has."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_proto.pipeline import PipelineError, compile_stages, parse_pipeline
from omni_proto.pipeline.read.offline import parse_checked
from omni_proto.stage_config import Listen, StageConfig, parse_stage_config
from omni_proto.stage_config.extra_args import ALLOWED, CHOICES, DENIED, NUMBERS, SWITCHES, WHOLE, parse_extra_arg

pytestmark = pytest.mark.needs_vllm

_REACHES_OUT = re.compile(r"path|file|dir|cls|plugin|module|trust|addr|port|url|host|endpoint|token$|_config$|model")


def read_vllm_fields() -> dict[str, str]:
    """Returns the annotation of each field of vLLM's EngineArgs, without an import of vLLM."""
    origin = getattr(find_spec("vllm"), "origin", None)
    tree = ast.parse((Path(str(origin)).parent / "engine" / "arg_utils.py").read_text())
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "EngineArgs"]
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def test_the_list_is_that_of_vllm() -> None:
    fields = read_vllm_fields()
    denied = {name for names in DENIED.values() for name in names}
    assert len(fields) > 200
    assert {*ALLOWED, *denied} <= fields.keys()
    assert not denied & {*ALLOWED}
    for names, kind in ((WHOLE, "int|OptimizationLevel"), (NUMBERS, "float"), (SWITCHES, "bool")):
        for name in names:
            assert re.search(kind, fields[name]), (name, fields[name])
    for name in CHOICES:
        assert not re.search(r"\bint\b|\bbool\b|\bfloat\b|dict|list", fields[name]), (name, fields[name])


def test_nothing_that_reaches_out_is_allowed() -> None:
    assert [name for name in ALLOWED if _REACHES_OUT.search(name)] == []


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("optimization_level", 2, 2),
        ("optimization_level", "2", 2),
        ("cpu_offload_gb", "1.5", 1.5),
        ("enable_expert_parallel", "true", True),
        ("attention_backend", "FLASH_ATTN", "FLASH_ATTN"),
    ],
)
def test_values_have_vllms_types(name: str, value: Any, meant: Any) -> None:
    found = parse_extra_arg(name, value)
    assert (found, type(found)) == (meant, type(meant))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"trust_remote_code": "true"}, "arguments that may not be given: ['trust_remote_code']|trust_remote_code"),
    ({"max_model_len": 1}, "max_model_len"),
    ({"no_such_argument": 1}, "no_such_argument"),
    ({"enable_expert_parallel": "yes"}, 'must be "true" or "false"'),
    ({"enable_expert_parallel": True}, "extraEngineArgs"),
    ({"optimization_level": "two"}, "must be a whole number"),
    ({"attention_backend": "/etc/passwd"}, "extraEngineArgs"),
    ({"Attention": "a"}, "extraEngineArgs"),
]


def build(extra: dict[str, Any]) -> str:
    stage = {"name": "llm", "component": "generic/llm", "outputs": ["Text"], "extraEngineArgs": extra}
    document = {
        "apiVersion": "omnipipeline.io/v1alpha1",
        "kind": "OmniPipeline",
        "metadata": {"name": "llm"},
        "spec": {"model": {"uri": "file:///m"}, "stages": [stage]},
    }
    return yaml.safe_dump(document)


@pytest.mark.parametrize(("extra", "says"), WRONG, ids=lambda item: str(item)[:30])
def test_what_may_not_be_given_is_refused_by_file_and_by_type(extra: dict[str, Any], says: str) -> None:
    with pytest.raises(PipelineError) as refused:
        parse_checked(build(extra))
    assert any(part in str(refused.value) for part in says.split("|")), refused.value


def test_the_arguments_reach_the_stage_file() -> None:
    given = {"optimization_level": 2, "enable_expert_parallel": "true", "cpu_offload_gb": "1.5"}
    pipeline = parse_pipeline(build(given))
    (config,) = compile_stages(
        pipeline, target_for=lambda stage: "", model_path_for=lambda stage: "/m", listen_for=lambda stage: Listen()
    )
    read: StageConfig = parse_stage_config(config.to_yaml())
    assert read.extra_engine_args == given
