"""Where a campaign looks for the goals that it has missed: settings that can reach them, and journeys made for them.

A goal that is not named here is sought in settings that have what it needs: a backend, a Host tier, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from kvcrucible.fuzz.coverage import GOALS
from kvcrucible.fuzz.setting import Setting


@dataclass(frozen=True, slots=True)
class Sought:
    """Journeys (by name) that often reach a goal, and which of the settings that have what it needs can."""

    journeys: tuple[str, ...] = ()
    suits: Callable[[Setting], bool] = lambda setting: True


def _fails(setting: Setting) -> bool:
    return setting.fail_every > 0


def _passes(setting: Setting) -> bool:
    return setting.lookahead > 0


_COMING_BACK, _SINKING = ("return-to-host-hit",), ("sink-under-pressure",)

#: By goal.
SOUGHT = {
    "abandoned-taken-up": Sought(("last-holder",)),
    "admission-leaves-out-demoted": Sought(_COMING_BACK),
    "admitted-after-sinking": Sought(_SINKING),
    "admitted-from-what-came-back": Sought(_COMING_BACK),
    "backfill-beside-another": Sought(suits=_passes),
    "copy-ends-by-append": Sought(("change-what-has-a-copy",)),
    "copy-ends-by-cut": Sought(("change-what-has-a-copy",)),
    "cut-loses-to-a-transfer": Sought(("cut-what-moves", "last-holder")),
    "cut-releases-a-continuation": Sought(("cut-what-moves",)),
    "cut-held-up-by-a-transfer": Sought(("cut-what-moves",)),
    "demote-into-holes": Sought(("fill-the-arena",)),
    "device-copies-given-up": Sought(_SINKING),
    "failed-to-sink-yields": Sought(_SINKING, _fails),
    "fallback-after-failed-restore": Sought(_COMING_BACK, _fails),
    "head-starts-beside-who-passed-it": Sought(suits=_passes),
    "held-back-by-shared-pages": Sought(suits=_passes),
    "held-back-by-the-pinned": Sought(suits=_passes),
    "held-back-by-what-moves": Sought(suits=_passes),
    "host-copies-given-up": Sought(_SINKING),
    "lookup-prefers-resident": Sought(("twins",)),
    # A transfer's end is told before that of the unit that touched its pages.
    "page-retires-at-a-transfer": Sought(
        ("watch",), lambda setting: setting.lagging and setting.schedule == "compute-silent"
    ),
    "released-on-host-for-a-sink": Sought(_SINKING),
    "restore-in-part": Sought(_COMING_BACK),
    "restore-releases-others": Sought((*_COMING_BACK, "restore-under-pressure")),
    "sinks-with-shared-pages": Sought(_SINKING),
    "taken-up-in-the-backend": Sought(("taken-up-in-one-pool",)),
    "two-transfers-of-one-extent": Sought(("twins",)),
    "wait-for-anothers-restore": Sought(_COMING_BACK),
}


def journeys_toward(missed: Collection[str]) -> tuple[str, ...]:
    """Return the journeys that often reach the ``missed`` goals, each once."""
    found = [journey for name in missed if name in SOUGHT for journey in SOUGHT[name].journeys]
    return tuple(dict.fromkeys(found))


def suits(setting: Setting, missed: Collection[str]) -> bool:
    """Say whether any of the ``missed`` goals can be reached in ``setting``; without one, every setting will do."""
    return not missed or any(_suits(setting, name) for name in missed)


def _suits(setting: Setting, name: str) -> bool:
    needs = GOALS[name].needs
    has = (
        (setting.backend is not None or not needs.backend)
        and (setting.host_bytes is not None or not needs.host)
        and (setting.host_bytes is None or not needs.hostless)
    )
    return has and (name not in SOUGHT or SOUGHT[name].suits(setting))
