"""Standard output and standard error that say so where nothing more can be written to them.

Libraries between a command and its output turn a broken pipe into status 1, which here means that an invariant is
broken, and leave every other failure as a traceback.  So both streams are guarded: a failed write ends the command by
:class:`~kvcrucible.contract.errors.OutputFailed`, which no library takes for its own (decision 0016).
"""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO, cast

from kvcrucible.contract.errors import OutputFailed


class _Guarded:
    """A text stream whose failed writes raise :class:`OutputFailed`; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise OutputFailed(error) from None

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise OutputFailed(error) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard_output() -> None:
    """Guard ``sys.stdout`` and ``sys.stderr`` from here on; one that the caller has closed stays absent."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Guarded):
            setattr(sys, name, cast("TextIO", _Guarded(stream)))


def flush_output() -> None:
    """Write what is still buffered; raises :class:`OutputFailed`."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def give_up_output() -> None:
    """Send what is still buffered nowhere, so that the interpreter does not try once more as it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except OutputFailed:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
