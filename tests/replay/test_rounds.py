"""Recorded rounds drive the engine: exact figures, every step judged, and a broken trim is found (decision 0023)."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcrucible.contract.errors import ExitStatus, InputError
from kvcrucible.engine import units
from kvcrucible.perf.rounds import Rounds, RoundsSettings
from kvcrucible.perf.traces.accepted import AcceptedTurn, read_accepted

#: Two conversations, one of two turns; the second round of the first accepts more than is drafted.
TURNS = [
    AcceptedTurn("a.0", None, (1, 6, 3)),
    AcceptedTurn("b.0", None, (2, 2)),
    AcceptedTurn("a.1", "a.0", (4, 1)),
]
SMALL = RoundsSettings(page_size=4, drafted=4, ahead=2, asked=6, concurrency=2, full_every=1)


def written(path: Path, *lines: object) -> Path:
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    return path


@pytest.mark.parametrize("backend", ["mtp", "draft", None])
def test_the_figures_are_those_of_the_record(backend: str | None) -> None:
    figures = Rounds(TURNS, RoundsSettings(**{**_plain(SMALL), "backend": backend})).run()
    assert figures.failure is None
    assert (figures.turns, figures.rounds, figures.accepted_tokens) == (3, 8, 19)
    assert figures.hit_tokens == figures.findable_tokens == 16
    # The first two rounds of a.0 leave room for a lead of 2; all others draft up to the turn's limit.
    assert figures.led_positions == (4 if backend == "mtp" else 0)
    kept = [g - t for g, t in zip(figures.pages_granted, figures.pages_trimmed, strict=True)]
    # a.0 ends with 16 tokens in 4 pages, b.0 with 10 in 3, and a.1 goes on from 16 to 27.
    assert kept == [4 + 3 + 3] * (1 if backend is None else 2)
    assert min(figures.pages_trimmed) > 0


def _plain(settings: RoundsSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in RoundsSettings.__slots__}


def test_the_same_turns_give_the_same_figures() -> None:
    assert Rounds(TURNS, SMALL).run() == Rounds(TURNS, SMALL).run()


def test_a_trim_that_gives_nothing_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "_trim", lambda engine, record: None)
    figures = Rounds(TURNS, SMALL).run()
    assert figures.failure is not None
    assert "EndUnit" in figures.failure


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"id": 1, "parent": None, "accept": []}, "at least one integer"),
        ({"id": 1, "parent": None, "accept": [1, 0]}, "use integers of 1"),
        ({"id": 1, "parent": None, "accept": [True]}, "use integers of 1"),
        ({"id": None, "parent": None, "accept": [1]}, "name every turn"),
        ({"id": 1, "accept": [1]}, "no key 'parent'"),
        ([1], "one object a line"),
    ],
)
def test_what_is_no_record_names_file_and_line(line: object, reason: str, tmp_path: Path) -> None:
    good = {"id": 0, "parent": None, "accept": [1]}
    path = written(tmp_path / "rounds.gz", good, line)
    with pytest.raises(InputError, match=rf"rounds\.gz, line 2: .*{reason}"):
        read_accepted(path)
    assert len(read_accepted(path, limit=1)) == 1


def test_the_rounds_of_one_file_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kvcrucible.perf.traces.accepted.MAX_ROUNDS", 3)
    path = written(tmp_path / "many", {"id": 0, "parent": None, "accept": [1] * 4})
    with pytest.raises(InputError, match="more than 3 rounds"):
        read_accepted(path)


def test_the_command_prints_figures_and_refuses_other_backends(tmp_path: Path) -> None:
    path = written(tmp_path / "r", *({"id": t.id, "parent": t.parent, "accept": t.accepted} for t in TURNS))
    command = [sys.executable, "-m", "kvcrucible", "rounds", str(path)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == ExitStatus.HELD, done.stderr
    assert json.loads(done.stdout)["figures"]["accepted_tokens"] == 19
    other = subprocess.run([*command, "--backend", "x"], capture_output=True, text=True, check=False)
    assert other.returncode == ExitStatus.USAGE


def test_a_recorded_run_holds(from_data: Callable[[str], Path]) -> None:
    turns = read_accepted(from_data("traces/spec_rest_mtbench.jsonl.gz"), limit=20)
    figures = Rounds(turns, RoundsSettings()).run()
    assert figures.failure is None
    assert figures.rounds == sum(len(turn.accepted) for turn in turns)
    assert figures.accepted_tokens == sum(sum(turn.accepted) for turn in turns)
    assert figures.hit_tokens == figures.findable_tokens > 0
