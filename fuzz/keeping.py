"""Writes results that are kept as JSON, and reads them as what a stranger may have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvcrucible.contract.errors import InputError


def write_json(path: Path, plain: dict[str, Any]) -> None:
    """Write ``plain`` to ``path``, whole or not at all; folders are made.

    Raises ``InputError`` where that cannot be.
    """
    beside = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(
            json.dumps(plain, indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8"
        )
        beside.replace(path)
    except OSError as error:
        raise InputError(f"results cannot be written to {path}: {error.strerror}") from error


def read_json(path: Path, most_bytes: int) -> Any:
    """Return what a file of at most ``most_bytes`` holds; raises ``InputError`` for one that is no JSON, is larger or
    cannot be read.
    """
    try:
        with path.open("rb") as file:
            # What was read is counted: the size that a device or a pipe tells is not that of what it yields.
            raw = file.read(most_bytes + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    if len(raw) > most_bytes:
        raise InputError(f"{path} has more than {most_bytes:,} bytes; it is no file of results")
    try:
        return json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no file of results: {type(error).__name__} {error}") from error
