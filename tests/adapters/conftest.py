"""What the tests of foreign engines share: an engine's module of their own, and nothing left of it afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcrucible.fuzz.adapters import registry


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget afterwards which engines were used, which modules they brought, and where those were looked for."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before, engines = set(sys.modules), dict(registry.ENGINES)
    yield
    registry.ENGINES.clear()
    registry.ENGINES.update(engines)
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"examples", "outside"}:
            del sys.modules[name]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of a module called ``outside``, in a working folder that is not on the path."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outside.py"
