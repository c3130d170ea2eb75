"""Results that are kept as JSON: written whole or not at all, and read as what a stranger may have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvcrucible.contract import json_files


def write_json(path: Path, plain: dict[str, Any]) -> None:
    """Write results as :func:`kvcrucible.contract.json_files.write_json` does; raises ``InputError``."""
    json_files.write_json(path, plain, "name another place for results with --out")


def read_json(path: Path, most_bytes: int) -> Any:
    """Return what a file of results says; raises ``InputError`` as :func:`kvcrucible.contract.json_files.read_json`."""
    return json_files.read_json(path, most_bytes, "name a file of results that a run has kept")
