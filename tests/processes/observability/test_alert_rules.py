"""promtool accepts the rules file, and each alert fires when it should and only then."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tools.observability.alerts import list_alerts

from support.peers.prometheus import RULES, run_promtool

CASES = sorted((Path(__file__).parent / "rules_test").glob("*.yaml"))


def test_promtool_takes_the_rules() -> None:
    said = run_promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert f"{len(list_alerts())} rules found" in said


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should(case: Path) -> None:
    run_promtool("test", "rules", case)


def test_every_alert_is_shown_to_fire_and_not_to() -> None:
    fires, quiet = set(), set()
    for case in CASES:
        for test in yaml.safe_load(case.read_text())["tests"]:
            for check in test.get("alert_rule_test", []):
                (fires if check.get("exp_alerts") else quiet).add(check["alertname"])
    names = {alert.name for alert in list_alerts()}
    assert fires == names
    assert quiet == names
