"""The Hypothesis state machine for a campaign: the rules, bound to an engine's capabilities and a range of settings."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.fuzz.driver import Recorder
from kvcrucible.fuzz.lockstep import Tally
from kvcrucible.fuzz.media_rules import MediaRules
from kvcrucible.fuzz.rules import Rules
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.speculation_rules import SpeculationRules
from kvcrucible.fuzz.tight_rules import TightRules


def machine_class(
    settings: st.SearchStrategy[Setting],
    capabilities: Capabilities,
    tally: Tally,
    recorder: Recorder,
    favoured: tuple[str, ...] = (),
) -> type[Rules]:
    """Return a state machine over ``settings`` that asks for nothing beyond ``capabilities`` and counts into
    ``tally``; ``favoured``: journeys that it takes rather than others.
    """
    owner, rather = (capabilities, tally, recorder), favoured

    class Campaign(SpeculationRules, MediaRules, TightRules):
        """One example: an engine and the reference in lock step."""

        capabilities, tally, recorder = owner
        favoured = rather

        @initialize(setting=settings)
        def begin(self, setting: Setting) -> None:
            self.lock = recorder.begin(setting, tally)

    return Campaign
