"""The administrator's policy: fields of the resource that no pipeline of the cluster may set.

A user who may create pipelines can give their pods any Secret, ConfigMap, claim and ServiceAccount of the namespace.
Where those users may not do so themselves, the administrator forbids the fields (docs/security.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from omni_proto.pipeline import OmniPipeline, PipelineError, Problem
from omni_proto.pipeline.types.pods import PodSettings

ENTRY_ROUTE: Final = "entry.route"
_ENTRY: Final = {"entry.service": "service", ENTRY_ROUTE: "route"}
EXTRA_ENGINE_ARGS: Final = "extraEngineArgs"
FORBIDDABLE: Final[dict[str, str]] = {
    **{field.alias or name: name for name, field in PodSettings.model_fields.items()},
    **_ENTRY,
}
"""Fields that can be forbidden, by their name in the resource, with the name of the attribute of PodSettings or Entry.
EXTRA_ENGINE_ARGS is not one of them: it is forbidden unless a setting of its own allows it."""


def check_policy(pipeline: OmniPipeline, forbidden: Sequence[str], source: str) -> None:
    """Check that the pipeline sets none of the forbidden fields. Raises PipelineError with each one that it sets."""
    if problems := list(_list_forbidden(pipeline, forbidden)):
        raise PipelineError(source, problems)


def _list_forbidden(pipeline: OmniPipeline, forbidden: Sequence[str]) -> Iterator[Problem]:
    spec = pipeline.spec
    places: list[tuple[str, PodSettings]] = [("spec.defaults", spec.defaults)]
    places += [(f"spec.stages[{index}]", stage) for index, stage in enumerate(spec.stages)]
    for field in forbidden:
        if field == EXTRA_ENGINE_ARGS:
            for index, stage in enumerate(spec.stages):
                if stage.extra_engine_args:
                    yield Problem(
                        f"spec.stages[{index}].{field}",
                        "is allowed only by the operator's setting allow-extra-engine-args; remove it, or ask the "
                        "administrator",
                    )
            continue
        if field in _ENTRY:
            found = [f"spec.{field}"] if _ENTRY[field] in spec.entry.model_fields_set else []
        else:
            found = [f"{path}.{field}" for path, place in places if getattr(place, FORBIDDABLE[field]) is not None]
        for path in found:
            yield Problem(
                path,
                "is forbidden in this cluster by the operator's setting forbidden-fields; remove it, or ask the "
                "administrator",
            )
