"""Results that are kept as JSON: written whole or not at all, and read as what a stranger may have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvcrucible.contract import json_files
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
    """Return what a file of results says; raises ``InputError`` as :func:`kvcrucible.contract.json_files.read_json`."""
    return json_files.read_json(path, most_bytes, "name a file of results that a run has kept")
