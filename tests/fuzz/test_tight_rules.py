"""Rules that count to the page reach what they were made for, and what they build is worked out for any geometry."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcrucible.contract.operations import WaitingKind
from kvcrucible.engine import backfill, starting
from kvcrucible.engine.cache import ContextCache
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.host.tier import HostTier
from kvcrucible.engine.records import Request
from kvcrucible.fuzz.adapters.registry import build
from kvcrucible.fuzz.draws import LOOKAHEADS, settings_for
from kvcrucible.fuzz.driver import Recorder
from kvcrucible.fuzz.lockstep import Tally
from kvcrucible.fuzz.machine import machine_class, to_hypothesis
from kvcrucible.fuzz.setting import Setting
from kvcrucible.invariants.violation import InvariantViolated

SMALL = Setting(capacity_pages=6, page_size=4, max_context=24, max_concurrency=4, lookahead=1)
WIDE = Setting(capacity_pages=9, page_size=16, max_context=95, max_concurrency=5, lookahead=3)
HOSTED = Setting(
    capacity_pages=8, page_size=4, max_context=20, max_concurrency=5, lookahead=1, host_bytes=1 << 13
)

CASES: list[tuple[str, str, dict[str, Any]]] = [
    (
        "move-fits-without-its-copy",
        "take_all_over",
        {"pages": 2, "twins": 2, "back": 5, "beyond": 0, "source": 1},
    ),
    (
        "held-back-by-the-pinned",
        "pass_beside_the_protected",
        {"beyond": 1, "source": 1, "head": 1, "moving": False, "busy": False},
    ),
    ("held-back-by-shared-pages", "pass_beside_who_shares", {"shared": 1, "beyond": 1, "source": 1}),
]


def machine_on(setting: Setting) -> Any:
    """Return a state machine on ``setting`` that has taken no step."""
    tally, recorder = Tally(), Recorder()
    machine = machine_class(st.just(setting), build(setting).capabilities, tally, recorder)()
    machine.lock = recorder.begin(setting, tally)
    return machine


@pytest.mark.parametrize("setting", [SMALL, WIDE, HOSTED], ids=["small", "wide", "hosted"])
@pytest.mark.parametrize(("goal", "name", "drawn"), CASES, ids=[case[1] for case in CASES])
def test_each_reaches_its_goal(goal: str, name: str, drawn: dict[str, Any], setting: Setting) -> None:
    machine = machine_on(setting)
    getattr(machine, name)(**drawn)
    assert machine.lock.tally.goals[goal]
    machine.lock.close()


@pytest.mark.parametrize(("goal", "name", "drawn"), CASES[1:], ids=[case[1] for case in CASES[1:]])
def test_a_page_less_and_nobody_is_held_back(goal: str, name: str, drawn: dict[str, Any]) -> None:
    machine = machine_on(SMALL)
    getattr(machine, name)(**drawn | {"beyond": 0})
    assert not machine.lock.tally.goals[goal]
    assert machine.lock.tally.goals["backfill"]
    assert machine.lock.tally.goals["head-starts-beside-who-passed-it"]


def test_an_engine_that_forgets_the_pinned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "protected_pages", lambda engine: [0] * len(engine.pools))
    with pytest.raises(InvariantViolated, match="completion-guarantee"):
        machine_on(SMALL).pass_beside_the_protected(beyond=1, source=0, head=1, moving=False, busy=False)


def test_an_engine_that_forgets_what_only_transfers_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Continuations in a transfer are protected as a whole; these have been released, and their pages still move."""
    drawn = {"beyond": 1, "source": 0, "head": 1, "moving": True, "busy": False}
    sound = machine_on(HOSTED)
    sound.pass_beside_the_protected(**drawn)
    assert sound.lock.tally.goals["held-back-by-what-moves"]
    sound.lock.close()
    monkeypatch.setattr(HostTier, "moving", lambda tier: iter(()))
    with pytest.raises(InvariantViolated, match="completion-guarantee"):
        machine_on(HOSTED).pass_beside_the_protected(**drawn)


def test_an_engine_that_lets_a_busy_session_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {"beyond": 0, "source": 0, "head": 1, "moving": False, "busy": True}
    for busy in (False, True):
        sound = machine_on(SMALL)
        sound.pass_beside_the_protected(**drawn | {"busy": busy})
        assert bool(sound.lock.tally.goals["backfill"]) is not busy
        sound.lock.close()
    blocked = starting._blocked

    def without_sessions(engine: Engine, request: Request) -> WaitingKind | None:
        why = blocked(engine, request)
        return None if why is WaitingKind.SESSION_BUSY else why

    monkeypatch.setattr(starting, "_blocked", without_sessions)
    with pytest.raises(InvariantViolated, match="row-unique: session 'a', active sequences: found 2"):
        machine_on(SMALL).pass_beside_the_protected(**drawn)


PLANTED = """
import sys
from kvcrucible.fuzz.faults.catalogue import fault
from kvcrucible.fuzz.faults.overlay import plant

if sys.argv[1] != "none":
    plant(fault(sys.argv[1]))
sys.path.insert(0, sys.argv[2])
from test_tight_rules import HOSTED, machine_on

machine_on(HOSTED).cut_what_moves_in_a_full_pool(pages=3, back=20, left=3, edge=True, keep=True, source=1)
"""

#: The same where copies that a unit may touch are given up like any others.
GIVEN_UP = """
import sys
from dataclasses import replace
from pathlib import Path

from kvcrucible.engine import relief

LINE = "if not held_up.isdisjoint(copies):"
if sys.argv[1] != "none":
    source = Path(relief.__file__).read_text(encoding="utf-8")
    assert source.count(LINE) == 1
    exec(compile(source.replace(LINE, "if False:"), relief.__file__, "exec"), vars(relief))
sys.path.insert(0, sys.argv[2])
from test_tight_rules import HOSTED, machine_on

machine = machine_on(replace(HOSTED, lagging=True))
machine.take_over_copies_in_use(pages=3, beyond=0, source=1)
machine.lock.close()
"""


def _ended(program: str, name: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", program, name, str(Path(__file__).parent)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_a_cut_that_counts_what_moves_is_found_where_pages_decide() -> None:
    assert _ended(PLANTED, "none").returncode == 0
    found = _ended(PLANTED, "cut-counts-what-moves").stderr
    assert "cache-yields: Truncate(sequence=3, position=0): found refused, device-capacity" in found


#: A page with a copy beside three that a request cuts off, for three pages and for four.
CUT_OFF: dict[str, Any] = {"pages": 1, "first": 2, "beyond": 1, "cut": True, "source": 1}


@pytest.mark.parametrize("beyond", [0, 1, 2])
def test_copies_stay_where_what_is_cut_off_is_enough(beyond: int) -> None:
    machine = machine_on(HOSTED)
    machine.take_what_has_a_copy(**CUT_OFF | {"beyond": beyond})
    assert machine.lock.tally.goals["cut-off-is-enough"] == (beyond <= 1)
    assert machine.lock.tally.goals["device-copies-given-up"] == (beyond > 1)
    machine.lock.close()


def test_an_engine_that_forgets_what_is_cut_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ContextCache, "lacking", lambda cache, short, dropped: list(short))
    with pytest.raises(InvariantViolated, match=r"cache-yields: Schedule.., copies on Device given up"):
        machine_on(HOSTED).take_what_has_a_copy(**CUT_OFF)


def test_copies_in_use_that_are_given_up_are_found() -> None:
    assert _ended(GIVEN_UP, "none").returncode == 0
    assert "engine-fault" in _ended(GIVEN_UP, "given-up").stderr


@given(
    to_hypothesis(
        settings_for("paged", ("ledger",), (None, "mtp", "draft"), hosts=(False, True), lookaheads=LOOKAHEADS)
    ),
    st.permutations(CASES),
    st.sampled_from((-1, 0, 1)),
    st.integers(2, 4),
)
@settings(max_examples=40)
def test_they_hold_on_any_setting(
    setting: Setting, cases: list[tuple[str, str, dict[str, Any]]], beyond: int, pages: int
) -> None:
    machine = machine_on(setting)
    if setting.host_bytes is not None:
        machine.take_over_copies_in_use(pages=pages, beyond=beyond, source=1)
    for _, name, drawn in cases:
        if setting.lookahead or name == "take_all_over":
            getattr(machine, name)(**drawn | {"beyond": beyond})
    if setting.host_bytes is not None:
        machine.take_what_has_a_copy(**CUT_OFF | {"beyond": beyond + 1})
    machine.lock.close()
