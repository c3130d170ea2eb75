"""Rules over the text of the repository: data files come through ``importlib.resources``, no machine's paths appear."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tree import package_files

#: Absolute paths that exist on one machine only.  Spelled in parts, so that this file does not report itself.
_ONE_MACHINE = "|".join(["work", "root", "Users", "home/[a-z]", "opt/w"])
MACHINE_PATH = re.compile(rf"(?<![\w.~$}}/-])/(?:{_ONE_MACHINE})[\w/.-]*")

#: Larger files are data; a path of ours does not hide in their middle.
MAX_TEXT_BYTES = 2_000_000


def tracked_files(root: Path) -> list[Path]:
    """Return the files that git tracks under ``root``, links left out; raises ``OSError`` where git cannot say."""
    command = ["git", "-c", f"safe.directory={root}", "-C", str(root), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, check=False)
    if listed.returncode:
        raise OSError(listed.stderr.decode("utf-8", "replace").strip())
    paths = (root / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name)
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def machine_paths(path: Path) -> Iterator[str]:
    """Yield ``FILE:LINE: PATH`` for each path in ``path`` that only one machine has."""
    if path.stat().st_size > MAX_TEXT_BYTES:
        return
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        for match in MACHINE_PATH.finditer(line):
            yield f"{path}:{number}: {match.group()}"


def file_relative_access(root: Path) -> Iterator[str]:
    """Yield each use of ``__file__`` in the package: what is found that way is not found in a zipped installation."""
    for relative in package_files(root):
        if relative.suffix != ".py":
            continue
        path = root / "src" / relative
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
            name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
            if name == "__file__":
                assert isinstance(node, ast.expr)
                yield f"{relative.as_posix()}:{node.lineno}: __file__; use importlib.resources.files"
