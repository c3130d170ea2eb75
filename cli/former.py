"""Former results that stand where new ones are about to be written: kept beside them, and said so."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from kvcrucible.cli.console import stderr_line
from kvcrucible.contract.errors import InputError


def set_aside(path: Path) -> Path | None:
    """Rename the file at ``path``, and say so on standard error; return its new name, None where there is none.

    The name has the time (UTC) at which the file was last written: ``runs.json`` becomes
    ``runs-20261130-081200.json``.  No other file is ever overwritten: where that name is taken, a number follows it.
    Raises ``InputError`` where the file cannot be renamed.
    """
    if not path.is_file():
        return None
    try:
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y%m%d-%H%M%S")
        beside = _reserved(path, written)
        path.replace(beside)
    except OSError as error:
        raise InputError(
            f"{path} has former results that cannot be set aside: {error.strerror or error}; name another --out"
        ) from error
    stderr_line(f"former results are kept as {beside}")
    return beside


def _reserved(path: Path, written: str) -> Path:
    """Return a name beside ``path`` that nobody had; an empty file holds it, so that nobody else takes it meanwhile."""
    for number in count(1):
        again = "" if number == 1 else f"-{number}"
        beside = path.with_name(f"{path.stem}-{written}{again}{path.suffix}")
        try:
            beside.touch(exist_ok=False)
        except FileExistsError:
            continue
        return beside
    raise AssertionError("numbers do not end")
