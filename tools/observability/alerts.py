"""All alerts. They are few, and each has a page in docs/runbooks that says what to do."""

from __future__ import annotations

from tools.observability.rules.gateway import GATEWAY
from tools.observability.rules.operator import OPERATOR
from tools.observability.rules.pipelines import PIPELINES
from tools.observability.rules.rule import Alert
from tools.observability.rules.stages import STAGES

GROUPS = (PIPELINES, STAGES, OPERATOR, GATEWAY)


def list_alerts() -> list[Alert]:
    """Returns all alerts, in the order of the file."""
    return [alert for group in GROUPS for alert in group.alerts]
