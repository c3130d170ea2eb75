"""What to say where an optional dependency is absent."""

from __future__ import annotations

from importlib.util import find_spec

from kvcrucible.contract.errors import NotRunError
from kvcrucible.contract.extras import install_remedy


def require_modules(extra: str, *modules: str) -> None:
    """Raise ``NotRunError``, which names the extra to install, unless every one of ``modules`` can be found."""
    absent = [module for module in modules if find_spec(module) is None]
    if absent:
        raise NotRunError(f"{', '.join(absent)} not installed; {install_remedy(extra)}")
