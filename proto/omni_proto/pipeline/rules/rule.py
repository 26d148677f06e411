"""One rule of the API in CEL, and how its parts are written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule on the fields below the type (or map, or text) that it belongs to, which is `self`."""

    summary: str
    """What holds, for the reference page."""
    rule: str
    """CEL expression that is true when it holds."""
    words: str
    """What is wrong and what to do, with %s and %d for the values."""
    values: tuple[str, ...] = ()
    """CEL expressions whose values name the offender."""
    field: str = ""
    """The field below self that is to blame, e.g. .stages"""
    fallback: str = ""
    """Words without values, if the summary does not do."""

    def to_schema(self) -> dict[str, str]:
        """An entry of x-kubernetes-validations."""
        entry = {"rule": self.rule, "message": self.words}
        if self.values:
            # The API server falls back to `message` where the text comes out as more than one line.
            entry["message"] = self.fallback or f"must hold: {self.summary.replace('`', '')}"
            entry["messageExpression"] = f"{quote(self.words)}.format([{', '.join(self.values)}])"
        if self.field:
            entry["fieldPath"] = self.field
        return entry


def quote(text: str) -> str:
    """A CEL literal of the text."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def matches(pattern: str, form: str) -> Rule:
    """A text is of the pattern; form: the same in words."""
    return Rule(
        summary=f"is {form}",
        rule=f"self.matches({quote(pattern)})",
        words=f"must be {form}; found %s",
        values=("self",),
        fallback=f"must be {form}",
    )


def keys_match(pattern: str, max_length: int, form: str) -> Rule:
    """Every key of a map is of the pattern, which OpenAPI of the API server cannot say; form: the same in words."""
    good = f"size(k) <= {max_length} && k.matches({quote(pattern)})"
    return Rule(
        summary=f"keys are {form}",
        rule=f"self.all(k, {good})",
        words=f"keys must be {form}; found %s",
        values=(f"self.filter(k, !({good}))",),
    )
