"""One rule of the API in CEL, and functions that build rules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule on a value: an object, a map or a text. In CEL, the value is `self`."""

    summary: str
    """The rule in words, for the reference page."""
    rule: str
    """CEL expression that is true if the rule holds."""
    words: str
    """The error message: what is wrong and what to do, with %s and %d for the values."""
    values: tuple[str, ...] = ()
    """CEL expressions whose values the message shows."""
    field: str = ""
    """The wrong field, relative to self, e.g. .stages"""
    fallback: str = ""
    """Message without values. Default: made from the summary."""

    def to_schema(self) -> dict[str, str]:
        """Returns the entry of x-kubernetes-validations."""
        entry = {"rule": self.rule, "message": self.words}
        if self.values:
            # The API server uses `message` if messageExpression yields more than one line.
            entry["message"] = self.fallback or f"must hold: {self.summary.replace('`', '')}"
            entry["messageExpression"] = f"{quote(self.words)}.format([{', '.join(self.values)}])"
        if self.field:
            entry["fieldPath"] = self.field
        return entry


def quote(text: str) -> str:
    """Returns the text as a CEL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def matches(pattern: str, form: str) -> Rule:
    """Returns the rule that a text matches the pattern; form describes the pattern in words."""
    return Rule(
        summary=f"is {form}",
        rule=f"self.matches({quote(pattern)})",
        words=f"must be {form}; found %s",
        values=("self",),
        fallback=f"must be {form}",
    )


def keys_match(pattern: str, max_length: int, form: str) -> Rule:
    """Returns the rule that every key of a map matches the pattern; form describes the pattern in words.

    A rule is needed because the API server's OpenAPI schemas cannot restrict the keys of a map.
    """
    good = f"size(k) <= {max_length} && k.matches({quote(pattern)})"
    return Rule(
        summary=f"keys are {form}",
        rule=f"self.all(k, {good})",
        words=f"keys must be {form}; found %s",
        values=(f"self.filter(k, !({good}))",),
    )


def one_of(*fields: str) -> Rule:
    """Returns the rule that exactly one of the fields is set."""
    is_set = f"[{', '.join(f'has(self.{field})' for field in fields)}].filter(x, x).size()"
    return Rule(
        summary=f"exactly one of {', '.join(f'`{field}`' for field in fields)} is set",
        rule=f"{is_set} == 1",
        words=f"%d of {', '.join(fields)} are set; set exactly one",
        values=(is_set,),
    )
