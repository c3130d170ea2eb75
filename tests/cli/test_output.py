"""What becomes of a command whose output cannot be written: quiet for a closed pipe, one line for anything else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvcrucible.contract.errors import ExitStatus

COMMAND = [sys.executable, "-m", "kvcrucible"]

#: Through rich, through print, as JSON, and through the library that prints help.
COMMANDS = (
    ("invariants",),
    ("invariants", "--json"),
    ("layout", "--layers", "1", "--heads", "1", "--dim", "64"),
    ("--version",),
    ("--help",),
)

FULL = Path("/dev/full")


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_reader_that_goes_away_ends_the_command_quietly_as_a_closed_pipe(
    arguments: tuple[str, ...],
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, *arguments], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode == ExitStatus.OUTPUT_CLOSED == 128 + 13


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_full_disk_is_one_line_with_the_reason(arguments: tuple[str, ...]) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == ExitStatus.USAGE
    assert done.stderr.startswith("error: the output cannot be written (No space left on device)")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_errors_that_cannot_be_written_keep_a_status_of_failure() -> None:
    with FULL.open("w") as full:
        done = subprocess.run([*COMMAND, "no-such"], stdout=subprocess.PIPE, stderr=full, check=False)
    assert done.returncode == ExitStatus.USAGE
    assert done.stdout == b""
