"""Where recorded traces lie, and small files in the three formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def recorded(from_data: Callable[[str], Path]) -> Callable[[str], Path]:
    """Find a recorded trace by its name, or skip."""
    return lambda name: from_data(f"traces/{name}.jsonl.gz")


@pytest.fixture
def trace_file(tmp_path: Path) -> Callable[[bytes], Path]:
    """Write bytes to a file whose name says nothing of what they are."""

    def write(content: bytes) -> Path:
        path = tmp_path / "trace"
        path.write_bytes(content)
        return path

    return write


@pytest.fixture(scope="session")
def normalised_line() -> Callable[..., bytes]:
    """Make a good normalised line, with the given keys in place of its own; without those given as ``...``."""

    def line(**changes: object) -> bytes:
        record = {
            "t": 1.5,
            "in": 130,
            "out": 7,
            "blocks": [0, 1, 2],
            "block_size": 64,
            "parent": None,
            "id": 4,
        }
        kept = {key: value for key, value in (record | changes).items() if value is not ...}
        return json.dumps(kept).encode() + b"\n"

    return line
