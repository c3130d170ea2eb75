"""What a built wheel must hold, as functions over the file; ``check_wheel.py`` and the tests share them."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

PACKAGE = "kvcrucible"


def wheel_names(wheel: Path) -> list[str]:
    """Return the paths of the files in ``wheel``."""
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if not name.endswith("/")]


def violations(wheel: Path, expected: Iterable[Path]) -> list[str]:
    """Return what is wrong with ``wheel``: a second top-level name, or a file of ``expected`` that it lacks.

    ``expected`` are paths relative to site-packages, ``kvcrucible/...``.
    """
    names = wheel_names(wheel)
    tops = {name.split("/")[0] for name in names}
    installed = sorted(top for top in tops if not top.endswith(".dist-info"))
    found = [] if installed == [PACKAGE] else [f"top-level names: {installed}, wanted only {PACKAGE}"]
    lacking = sorted({path.as_posix() for path in expected} - set(names))
    return found + [f"not in the wheel: {name} (see package-data in pyproject.toml)" for name in lacking]
