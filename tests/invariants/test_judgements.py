"""What reports say beside the invariants is declared once, explained, and names the place of an engine's fault."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kvcrucible.cli.invariants import register
from kvcrucible.contract.operations import Schedule, Submit
from kvcrucible.engine.pool import PagePool
from kvcrucible.fuzz.reproduction import violations_of
from kvcrucible.fuzz.setting import Setting
from kvcrucible.invariants.judgements import ENGINE_FAULT, JUDGEMENTS, raised
from kvcrucible.invariants.registry import IDS


def invoke(*arguments: str, columns: int = 80):
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns)})


def reported_ids(repository: Path) -> Iterator[tuple[str, str]]:
    """Yield (file, id) for every id that the code writes out where it reports a violation."""
    for folder in ("fuzz", "invariants", "perf", "cli"):
        for path in (repository / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                    first = node.args[0]
                    if node.func.id in ("Violation", "mismatch") and isinstance(first, ast.Constant):
                        yield path.name, first.value


def test_every_id_that_is_reported_is_an_invariant_or_a_judgement(repository):
    found = list(reported_ids(repository))
    assert len(found) > 10
    assert [(file, name) for file, name in found if name not in {*IDS, *JUDGEMENTS}] == []
    assert not set(IDS) & set(JUDGEMENTS)


@pytest.mark.parametrize("name", JUDGEMENTS)
def test_a_judgement_is_explained(name):
    shown = invoke(name)
    assert shown.exit_code == 0
    assert name in shown.output
    assert "judgement of the harness" in shown.output
    plain = json.loads(invoke(name, "--json").output)
    assert plain == {
        "id": name,
        "status": "judgement",
        "statement": JUDGEMENTS[name].statement,
        "advice": JUDGEMENTS[name].advice,
    }


def test_the_listing_shows_them_in_a_section_of_their_own():
    listing = invoke().output
    head, _, tail = listing.partition("Judgements of the harness")
    for name in JUDGEMENTS:
        assert name not in head
        assert name in tail


def test_a_mistyped_judgement_is_told_its_neighbour():
    assert "engine-fault" in str(invoke("engine-falt").exception)


def test_a_bare_assertion_names_its_line_in_the_engine(monkeypatch):
    def broken(self, pages):
        self.leased = -1
        self.release([])

    monkeypatch.setattr(PagePool, "reserve", broken)
    (found,) = violations_of(Setting(), [Submit(((0, 0, 5),), 3), Schedule()])
    assert found.invariant == ENGINE_FAULT
    place = r"raised AssertionError: assert self\.leased >= 0 \(kvcrucible/engine/pool\.py:\d+\)"
    assert re.search(place, found.message)


def caught(act: Callable[[], object]) -> str:
    try:
        act()
    except Exception as error:
        return raised(error)
    raise LookupError("nothing was raised")


def test_a_message_is_kept_and_a_bare_assertion_shows_its_text():
    assert caught(lambda: {}["page 7"]).startswith("KeyError: 'page 7' (")
    assert raised(ValueError("never raised")) == "ValueError: never raised"
    assert raised(ValueError()) == "ValueError"
