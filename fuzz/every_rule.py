"""All rules in one class, whoever draws them: Hypothesis's state machine, or the raw loop."""

from __future__ import annotations

from kvcrucible.fuzz.media_rules import MediaRules
from kvcrucible.fuzz.speculation_rules import SpeculationRules
from kvcrucible.fuzz.tight_rules import TightRules


class EveryRule(SpeculationRules, MediaRules, TightRules):
    """The driver with every rule."""
