"""What tests of engines that stop half done share (decision 0030): something that fails, and how an engine is then."""

from __future__ import annotations

from typing import Any

import pytest

from kvcrucible.contract.errors import EngineLost
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine


def unwell(*_: Any) -> None:
    """Fail as nobody has foreseen."""
    raise RuntimeError("something is unwell")


def lost(e: Engine, why: str) -> None:
    """Assert that the engine refuses everything, and says ``why``, a regular expression."""
    for act in (e.schedule, e.progress, lambda: e.lookup(run(0, 0, 2)), lambda: e.submit(run(0, 0, 1), 0)):
        with pytest.raises(EngineLost, match=why):
            act()


def cut_short(e: Engine, operation: str) -> None:
    """Assert that the engine refuses everything, and names the operation in which something was :func:`unwell`."""
    lost(e, f"{operation} stopped half done: RuntimeError.*unwell")
