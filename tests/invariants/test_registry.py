"""The catalogue is complete, and the command shows it."""

from __future__ import annotations

import json

import pytest
import typer
from minimal_states import FIRES
from typer.testing import CliRunner

from kvcrucible.cli.invariants import register
from kvcrucible.contract.capabilities import ALL_PARTS, Capabilities
from kvcrucible.contract.errors import InputError
from kvcrucible.invariants.behaviour import JUDGED
from kvcrucible.invariants.checker import Checker
from kvcrucible.invariants.judgements import JUDGEMENTS
from kvcrucible.invariants.registry import CHECKERS, IDS, INVARIANTS, checkers, inapplicable


def test_the_catalogue_holds_every_id_once():
    assert len(IDS) == len(set(IDS)) == 33
    assert tuple(INVARIANTS) == IDS
    named = [entry.id for entry in (*CHECKERS, *JUDGED)]
    assert sorted(named) == sorted(IDS)


@pytest.mark.parametrize("entry", INVARIANTS.values(), ids=INVARIANTS.keys())
def test_every_invariant_is_stated_and_judged(entry):
    assert entry.statement.endswith(".")
    assert entry.checker or entry.judge
    assert entry.depth
    assert entry.source
    assert entry.documentation


def test_every_id_and_judgement_has_something_small_that_breaks_it():
    assert set(FIRES) == {*IDS, *JUDGEMENTS}


@pytest.mark.parametrize("name", FIRES)
def test_it_fires_on_the_smallest_thing_that_breaks_it_and_is_silent_before(name):
    sound, broken = FIRES[name]()
    assert sound == set()
    assert name in broken


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_checker_has_a_step_check_or_says_why_none(checker):
    """The inherited step check judges the entries in view, each by itself; a rule about steps alone has no full one."""
    assert checker.check is not Checker.check or checker.check_delta is not Checker.check_delta
    assert checker.is_local or "Not local:" in checker.__doc__


def test_an_engine_that_shows_less_is_judged_by_less_and_says_why():
    some = Capabilities(
        "other", reserves=False, snapshot_parts=frozenset({"pools", "pages", "spaces", "rows"})
    )
    left_out = inapplicable(some)
    assert left_out["frontier-visibility"] == "other cannot show: units"
    assert "table-mirror" not in left_out
    assert {checker.id for checker in checkers(some)} == {c.id for c in CHECKERS} - left_out.keys()
    on_demand = Capabilities("other", reserves=False)
    assert list(inapplicable(on_demand)) == ["completion-guarantee"]
    assert inapplicable(Capabilities("ours")) == {}
    assert inapplicable(Capabilities("other", host=False)) == {
        checker.id: "other has no Host tier" for checker in CHECKERS if checker.needs_host
    }


def test_needs_name_parts_of_the_snapshot():
    for checker in CHECKERS:
        assert checker.needs <= ALL_PARTS
        assert checker.premise_part in ALL_PARTS


def test_each_run_gets_checkers_of_its_own():
    assert not set(map(id, checkers())) & set(map(id, checkers()))


@pytest.fixture
def command():
    app = typer.Typer()
    register(app)
    app.callback()(lambda: None)
    return lambda *arguments: CliRunner().invoke(app, ["invariants", *arguments])


def test_the_table_shows_every_id(command):
    result = command()
    assert result.exit_code == 0
    assert all(name in result.stdout for name in IDS)
    assert "33 invariants." in result.stdout


def test_one_entry_shows_what_its_checker_verifies(command):
    result = command("table-mirror")
    assert result.exit_code == 0
    assert "Verifies:" in result.stdout
    assert "Does not verify:" in result.stdout
    assert "4.7" in result.stdout


def test_json_is_for_machines(command):
    listed = json.loads(command("--json").stdout)
    assert [entry["id"] for entry in listed if entry["status"] != "judgement"] == list(IDS)
    one = json.loads(command("recycle-fenced", "--json").stdout)
    assert (one["checker"], one["harness"]) == ("RecycleFenced", "page_given_out")
    assert one["documentation"].startswith("Verifies:")


def test_an_unknown_id_is_an_input_error_with_near_matches(command):
    result = command("table-miror")
    assert isinstance(result.exception, InputError)
    assert "table-mirror" in str(result.exception)
    assert "kvcrucible invariants" in str(command("zzz").exception)
