"""Reads YAML as kubectl does, and refuses what is dangerous or ambiguous."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

MAX_DIGITS = 64
"""Maximum number of digits of a whole number. The API accepts 64 bits; Python raises ValueError above 4,300 digits."""
_PREFIX = re.compile(r"^[-+]?(?:0[bxo])?")


class StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses repeated keys, and aliases, with which a small file can expand without bound.

    Unquoted values have the same type as in kubectl, which reads YAML 1.1 with three differences: 1e9 is a number,
    12:30 is text, and dates are text, because JSON has no dates.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(None, None, "aliases are not supported", self.get_mark())
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        try:
            # JSON writes some characters as two escapes, such as "\ud83d\ude00". One of them alone is refused here.
            node.value.encode("utf-16", "surrogatepass").decode("utf-16")
            return super().construct_object(node, deep)
        except (AttributeError, IndexError, ValueError) as error:
            # PyYAML converts the value of an explicit tag such as !!float without a check.
            raise _error(f"{node.value[:24]!r} is not a valid {node.tag.rpartition(':')[2]}", node) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    raise _error(f"key {key.value[:64]!r} is given twice", node)
                keys.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        text = str(self.construct_scalar(node))
        if len(text) > MAX_DIGITS or not any(digit.isalnum() for digit in _PREFIX.sub("", text)):
            raise _error(f"{text[:24]!r} is not a whole number of at most {MAX_DIGITS} digits", node)
        return super().construct_yaml_int(node)

    def construct_boolean(self, node: yaml.ScalarNode) -> bool:
        return str(self.construct_scalar(node)).lower() in ("y", "yes", "true", "on")


def _error(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_DIGITS = "-+.0123456789"
_RESOLVERS: tuple[tuple[str, str, str], ...] = (
    ("bool", r"^(?:y|Y|n|N|(?:[Yy]es|YES|[Nn]o|NO|[Tt]rue|TRUE|[Ff]alse|FALSE|[Oo]n|ON|[Oo]ff|OFF))$", "yYnNtTfFoO"),
    ("int", r"^[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][0-9_]*)$", _DIGITS),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$", _DIGITS),
    ("float", r"^\.(?:nan|NaN|NAN)$", "."),
    ("null", r"^(?:~|null|Null|NULL|)$", "~nN"),
    ("merge", r"^<<$", "<"),
)

StrictLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _starts in _RESOLVERS:
    # The empty text is null; it has no first character.
    StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), [*_starts, *([""] if _tag == "null" else [])]
    )
StrictLoader.add_constructor("tag:yaml.org,2002:bool", StrictLoader.construct_boolean)
StrictLoader.add_constructor("tag:yaml.org,2002:int", StrictLoader.construct_integer)
