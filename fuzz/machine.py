"""The Hypothesis state machine for a campaign: the rules, bound to an engine's capabilities and a range of settings."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.fuzz.driver import Recorder
from kvcrucible.fuzz.lockstep import Tally
from kvcrucible.fuzz.rules import Rules
from kvcrucible.fuzz.setting import Setting
from kvcrucible.fuzz.speculation_rules import SpeculationRules


def machine_class(
    settings: st.SearchStrategy[Setting], capabilities: Capabilities, tally: Tally, recorder: Recorder
) -> type[Rules]:
    """Return a state machine over ``settings`` that asks for nothing beyond ``capabilities`` and counts into
    ``tally``.
    """
    owner = (capabilities, tally, recorder)

    class Campaign(SpeculationRules):
        """One example: an engine and the reference in lock step."""

        capabilities, tally, recorder = owner

        @initialize(setting=settings)
        def begin(self, setting: Setting) -> None:
            self.lock = recorder.begin(setting, tally)

    return Campaign
