"""A child process that runs to its end and whose output is read: one line says whatever went wrong with it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvcrucible.contract.errors import InputError

#: Characters that are shown of what a process, or the system in its place, said last.
_SHOWN_CHARACTERS = 300


def run_child(
    command: Sequence[str],
    name: str,
    *,
    timeout_seconds: float,
    most_bytes: int,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    silent: str = "it said nothing",
) -> str:
    """Run ``command`` and return what it printed, with a replacement for what is no UTF-8; its input is empty.

    ``name``: what a message begins with.  ``environment``, ``folder``: this process's own where there is none.
    ``silent``: what a failure means that says nothing.  Raises :class:`InputError` where the command cannot be started,
    takes longer than ``timeout_seconds`` (and is killed), fails, or has printed more than ``most_bytes``, which is
    looked at once it has ended.
    """
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=None if environment is None else dict(environment),
            cwd=folder,
            timeout=timeout_seconds,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"{name}: {str(error)[:_SHOWN_CHARACTERS]}") from None
    if done.returncode:
        last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or [silent])[-1]
        raise InputError(f"{name}: status {done.returncode}; {last[:_SHOWN_CHARACTERS]}")
    if len(done.stdout) > most_bytes:
        raise InputError(f"{name}: more than {most_bytes:,} bytes of output")
    return done.stdout.decode("utf-8", "replace")
