"""Invalid and valid pipelines: one table of cases for the API server with our CRD and for `omnipipe validate`.

Each case is a list of edits to one valid pipeline. An invalid case also has the field that both must report, and a part
of each one's error message.
"""

from __future__ import annotations

from typing import Final

from support.specs.bad_field_specs import BAD_FIELDS as COMMON_BAD_FIELDS
from support.specs.bad_rule_specs import BAD_RULES
from support.specs.good_specs import GOOD as COMMON_GOOD
from support.specs.odd_components import ODD_COMPONENTS_BAD, ODD_COMPONENTS_GOOD
from support.specs.odd_field_specs import ODD_BAD_FIELDS
from support.specs.odd_specs import ODD_BAD, ODD_GOOD
from support.specs.spec_edits import Bad, make

__all__ = ["BAD", "BAD_FIELDS", "BAD_RULES", "GOOD", "Bad", "make"]

BAD_FIELDS: Final[dict[str, Bad]] = {**COMMON_BAD_FIELDS, **ODD_BAD_FIELDS}
"""Case -> a pipeline that the type of a single field rejects."""
BAD: Final[dict[str, Bad]] = {**BAD_FIELDS, **BAD_RULES, **ODD_BAD, **ODD_COMPONENTS_BAD}
GOOD: Final = {**COMMON_GOOD, **ODD_GOOD, **ODD_COMPONENTS_GOOD}
