"""What a campaign has missed it looks for where it is likely."""

from __future__ import annotations

import pytest

from kvcrucible.fuzz.coverage import GOALS
from kvcrucible.fuzz.journeys import JOURNEYS
from kvcrucible.fuzz.seeking import SOUGHT, journeys_toward, suits
from kvcrucible.fuzz.setting import Setting

HOSTED = Setting(host_bytes=1 << 12)


def test_goals_and_journeys_are_called_what_they_are_called() -> None:
    assert set(SOUGHT) <= set(GOALS)
    assert {journey for sought in SOUGHT.values() for journey in sought.journeys} <= set(JOURNEYS)


def test_each_journey_once() -> None:
    assert journeys_toward(["copy-ends-by-cut", "copy-ends-by-append", "move-refused-by-lag"]) == (
        "change-what-has-a-copy",
    )
    assert journeys_toward([]) == ()


@pytest.mark.parametrize(
    ("missed", "setting", "due"),
    [
        ([], Setting(), True),
        (["demote-into-holes"], Setting(), False),
        (["demote-into-holes"], HOSTED, True),
        (["demote-without-host"], HOSTED, False),
        (["demote-without-host"], Setting(), True),
        (["move-refused-by-lag"], Setting(), False),
        (["move-refused-by-lag"], Setting(backend="mtp"), True),
        (["backfill-beside-another"], Setting(), False),
        (["backfill-beside-another"], Setting(lookahead=1), True),
        (["page-retires-at-a-transfer"], HOSTED, False),
        (
            ["page-retires-at-a-transfer"],
            Setting(host_bytes=1 << 12, lagging=True, schedule="compute-silent"),
            True,
        ),
        (["page-retires-at-a-transfer", "demote-into-holes"], HOSTED, True),
    ],
)
def test_settings_that_can_reach_one_of_them(missed: list[str], setting: Setting, due: bool) -> None:
    assert suits(setting, missed) is due
