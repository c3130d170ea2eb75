"""Which code a run was made by: half of what it takes to run a seed again."""

from __future__ import annotations

import subprocess
from importlib import resources

#: Seconds that git may take; it answers at once or not at all.
_GIT_SECONDS = 10


def source_commit() -> str | None:
    """Return the commit of the checkout that this package runs from, with ``+changes`` where files differ from it.

    None for an installed package, and where there is no git.
    """
    folder = str(resources.files("kvcrucible.fuzz"))
    commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain")
    # A checkout of something else that merely holds this folder, as a site-packages may be, tracks none of it.
    if commit is None or not _git(folder, "ls-files", "source.py"):
        return None
    return commit if changes == "" else f"{commit}+changes"


def _git(folder: str, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", folder, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
