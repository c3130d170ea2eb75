"""Brings the code of a revision into a folder of its own, without touching the checkout."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.child_process import run_child

#: Names the tracked files of the checkout as they are now, changes included.
WORKING_TREE = "."

#: Seconds that git may take, bytes that it may print: hashes.
_PATIENCE_SECONDS, _MOST_BYTES = 120, 1 << 16


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision: as it was named, its full hash, and the folder with its files."""

    name: str
    commit: str
    root: Path

    @property
    def source(self) -> Path:
        """What goes on ``PYTHONPATH``."""
        return self.root / "src"


def check_out(repository: Path, name: str, target: Path) -> Revision:
    """Write the files of revision ``name`` to the new folder ``target`` and return the revision.

    ``name``: whatever git understands, or :data:`WORKING_TREE`.  Raises :class:`InputError` where there is no such
    revision, or it is none of this repository.
    """
    commit = _commit(repository, name)
    target.mkdir(parents=True)
    archive = target.with_suffix(".tar")
    _git(repository, "archive", "--format=tar", f"--output={archive}", commit)
    with tarfile.open(archive) as packed:
        # Links stay inside, nothing is written outside, no owner and no special file is taken over.  Python can do that
        # from 3.11.4 on; before, what git has archived here is trusted.
        if hasattr(tarfile, "data_filter"):
            packed.extraction_filter = tarfile.data_filter
        packed.extractall(target)
    archive.unlink()
    if not (target / "src" / "kvcrucible" / "engine").exists():
        raise InputError(
            f"{name[:100]}: no KV Crucible in this revision (src/kvcrucible/engine is not there)"
        )
    return Revision(name, commit, target)


def require_revision(repository: Path, name: str) -> None:
    """Raise :class:`InputError` where the repository has no revision ``name``; writes nothing."""
    if name != WORKING_TREE:
        _commit(repository, name)


def _commit(repository: Path, name: str) -> str:
    if name == WORKING_TREE:
        # A commit of the tracked files as they are; it hangs in the air, and no reference or file is changed.
        found = _git(repository, "stash", "create")
        name = found or "HEAD"
    if name.startswith("-"):
        raise InputError(f"{name[:100]}: not a revision")
    return _git(
        repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", named=name
    )


def _git(repository: Path, *words: str, named: str = "") -> str:
    printed = run_child(
        ["git", "-C", str(repository), *words],
        f"{named[:100]}: git {words[0]}" if named else f"git {words[0]}",
        timeout_seconds=_PATIENCE_SECONDS,
        most_bytes=_MOST_BYTES,
        silent="no such revision",
    )
    return printed.strip()
