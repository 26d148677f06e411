"""The base of all request models, and unions that report the error of the right branch."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Discriminator, Tag, model_validator

_KINDS: Final = {str: "<text>", list: "<list>", dict: "<object>"}
"""Tags of a union's branches. pydantic puts the tag into the path of a problem; no field has such a name."""


class Body(BaseModel):
    """Base of request bodies. Unknown fields are errors, unless their value is null."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        json_schema_extra={"additionalProperties": {"type": "null"}},
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        """Many programs send null for each field that their user did not set, so null means that a field is absent."""
        if isinstance(value, dict) and None in value.values():
            return {name: one for name, one in value.items() if one is not None}
        return value


class CacheHints(Body):
    """Base of objects on which clients of other APIs mark what to cache. The marks have no effect, because the engine
    finds equal prefixes by itself."""

    cache_control: Any = None
    """Anthropic's mark; without effect."""
    prompt_cache_breakpoint: Any = None
    """OpenAI's mark; without effect."""


def _kind_of(value: Any) -> str | None:
    for kind, tag in _KINDS.items():
        if isinstance(value, kind):
            return tag
    return _KINDS[dict] if isinstance(value, BaseModel) else None


def by_kind(wanted: str) -> Discriminator:
    """Returns the discriminator of a union whose branches differ in the kind of the JSON value.

    Only the branch of the value's own kind is validated, so that an error says what is wrong there. wanted: names the
    kinds, for the error of a value of another kind.
    """
    return Discriminator(_kind_of, custom_error_type="union_kind", custom_error_message=f"Input should be {wanted}")


TEXT: Final = Tag(_KINDS[str])
LIST: Final = Tag(_KINDS[list])
OBJECT: Final = Tag(_KINDS[dict])

Text = Annotated[str, TEXT]
"""The branch of a union for a text."""
