"""What to say where an optional dependency is absent.

What was typed is judged first: who has mistyped a name is told so, and not to install something for it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from kvcrucible.contract.errors import InputError, NotRunError
from kvcrucible.contract.extras import install_remedy


def require_modules(extra: str, *modules: str) -> None:
    """Raise ``NotRunError``, which names the extra to install, unless every one of ``modules`` can be found."""
    absent = [module for module in modules if find_spec(module) is None]
    if absent:
        raise NotRunError(f"{', '.join(absent)} not installed; {install_remedy(extra)}")


def require_file(path: Path) -> None:
    """Raise ``InputError``, which says why, unless ``path`` can be opened to be read: before a library is missed."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
