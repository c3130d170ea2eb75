"""Brings the code of a revision into a folder of its own, without touching the checkout."""

from __future__ import annotations

import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from kvcrucible.contract.errors import InputError

#: Names the tracked files of the checkout as they are now, changes included.
WORKING_TREE = "."

#: Seconds that git may take.
_PATIENCE_SECONDS = 120


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
    command = ["git", "-C", str(repository), *words]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"git {words[0]}: {str(error)[:300]}") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no such revision"])[-1]
        raise InputError(f"{named[:100] or 'git ' + words[0]}: {said[:300]}")
    return done.stdout.strip()
