"""Cheap copies of this repository in which a test plants a failure, and the commands that must notice it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from import_rule import MAY_IMPORT, PACKAGE

#: What packaging, linter, type checker and coverage read beside the code.
CONFIGURATION = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")

#: Seconds after which a tool that a test started is taken to hang.
TOOL_TIMEOUT_SECONDS = 300


def copy_tree(repository: Path, destination: Path, *, only_packages: bool) -> Path:
    """Copy the code and its configuration to ``destination``, links kept as links, and return it.

    With ``only_packages`` nothing but the ``__init__.py`` files comes along: the same layout under the same
    configuration, in which a tool that would take a minute over the whole tree takes a second.
    """
    destination.mkdir(parents=True)
    for name in CONFIGURATION:
        shutil.copy2(repository / name, destination / name)
    for name in ("src", *MAY_IMPORT):
        if (
            repository / name
        ).exists():  # in an unpacked source archive the links are resolved: all is in src
            shutil.copytree(
                repository / name, destination / name, symlinks=True, ignore=_passed_over(only_packages)
            )
    return destination


def _passed_over(only_packages: bool):  # type: ignore[no-untyped-def]  # shutil's callback type is private
    def passed_over(folder: str, names: list[str]) -> set[str]:
        skipped = {name for name in names if name == "__pycache__" or name.endswith(".egg-info")}
        if only_packages:
            kept = {"__init__.py", "py.typed"}
            skipped |= {n for n in names if n not in kept and not os.path.isdir(os.path.join(folder, n))}
        return skipped

    return passed_over


def package_files(root: Path) -> Iterator[Path]:
    """Yield every file of the package as a path relative to the folder that holds the package (``root / "src"``)."""
    source = root / "src"
    for folder, names, files in os.walk(source / PACKAGE, followlinks=True):
        names[:] = sorted(name for name in names if name != "__pycache__")
        for name in sorted(files):
            if not name.endswith((".pyc", ".pyo")):
                yield (Path(folder) / name).relative_to(source)


def package_modules(root: Path) -> list[str]:
    """Return the import name of every module of the package under ``root``."""
    dotted = (path.with_suffix("").parts for path in package_files(root) if path.suffix == ".py")
    return [".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in dotted]


def run_tool(
    arguments: Sequence[str | Path], cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with ``arguments`` in ``cwd`` and return what came of it, output captured as text.

    ``environment`` is added to a copy of ours from which everything is removed that would let the checkout's own
    package, coverage measurement or settings in.
    """
    own = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV", "MYPY", "RUFF", "PYTEST"))
    }
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=own | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TOOL_TIMEOUT_SECONDS,
    )
