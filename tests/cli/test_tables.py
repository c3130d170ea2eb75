"""At eighty columns no table cuts anything, and ids stay whole."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rich.table
from rich.console import Console

from kvcrucible.cli.tables import Table
from kvcrucible.contract.profiles import PROFILES
from kvcrucible.fuzz.faults.catalogue import catalogue
from kvcrucible.invariants.registry import IDS

FAULTS = tuple(catalogue())

#: Commands, each with the words that have to stand in its table unbroken.
COMMANDS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("faults", "list"), FAULTS),
    (("invariants",), IDS),
    (("arena", "--limit", "60"), ("first-fit", "best-fit", "next-fit", "segregated-fit")),
    (("layout", "--layers", "1000", "--heads", "64", "--dim", "256"), (*PROFILES, "131,072,000")),
    (("layout", "--layers", "80", "--heads", "8", "--dim", "256", "--profile", "K8V4"), ("K8V4",)),
    (("capacity",), ("INT8-G64", "NVFP4-G16", "655,360", "10,485,760")),
    (("doctor",), ("kvcrucible", "accelerator")),
    (("fuzz", "--examples", "3", "--depth", "ledger"), ("no-leak-at-quiescence",)),
    (("faults", "run", "pressure-releases-pinned", "--examples", "20"), ("pressure-releases-pinned",)),
)


def run(arguments: tuple[str, ...], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kvcrucible", *arguments],
        capture_output=True, text=True, check=False, cwd=folder, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize(("arguments", "words"), COMMANDS, ids=[" ".join(each[:2]) for each, _ in COMMANDS])
def test_nothing_is_cut_at_eighty_columns(
    arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    shown = run(arguments, tmp_path)
    assert "│" in shown
    assert "…" not in shown
    assert all(len(line) <= 80 for line in shown.splitlines() if line.startswith("│"))
    found = set(re.findall(r"[\w,-]+", shown))
    assert [word for word in words if word not in found] == []


def test_a_cell_wider_than_its_table_goes_on_in_the_next_line() -> None:
    screen = Console(width=20, record=True, file=io.StringIO())
    table = Table("id", title="t")
    table.add_row("x" * 50)
    screen.print(table)
    assert screen.export_text().count("x") == 50


def test_every_command_uses_tables_that_fold(repository: Path) -> None:
    users = [path for path in (repository / "cli").glob("*.py") if path.name != "tables.py"]
    assert [path.name for path in users if "from rich.table import" in path.read_text("utf-8")] == []
    assert issubclass(Table, rich.table.Table)
