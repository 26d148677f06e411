"""Reconciling and Stalled: what tools that know no OmniPipeline, such as Flux and `helm --wait`, read of any resource.

Their library, kstatus of sigs.k8s.io/cli-utils, takes a resource for done if neither condition is True, Ready is not
False, and status.observedGeneration is the current one. Each is written only while it is True, and at most one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from omni_operator.reasons import Reason
from omni_operator.status.conditions import DEGRADED, PROGRESSING, RECONCILING, STALLED, Verdict

_NEEDS_AN_EDIT: Final = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.TOO_MANY_PIPELINES,
        Reason.CHILD_CONFLICT,
        Reason.INVALID_IMAGE_NAME,
        Reason.MODEL_NOT_FOUND,
        Reason.TOKEN_REJECTED,
        Reason.CONFIG_REJECTED,
        Reason.PROGRESS_DEADLINE_EXCEEDED,
        Reason.ROLLOUT_PAUSED,
    }
)
"""Reasons of Degraded=True that waiting does not remove. Others may pass, such as a full cluster."""


def judge_kstatus(verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Returns the verdict on Stalled or on Reconciling, whichever is True; empty if what runs matches the spec."""
    degraded, progressing = verdicts[DEGRADED], verdicts[PROGRESSING]
    if degraded.holds and degraded.reason in _NEEDS_AN_EDIT:
        return {STALLED: degraded}
    if progressing.holds:
        return {RECONCILING: progressing}
    return {}
