"""Opens a trace: finds out what it is by its content, never by its name, and streams its requests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.traces.fields import Malformed
from kvcrucible.perf.traces.formats import TraceFormat, recognise
from kvcrucible.perf.traces.limits import MAX_REQUESTS
from kvcrucible.perf.traces.lines import Lines
from kvcrucible.perf.traces.request import TraceRequest


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """What is known of a trace before its requests are read; ``total_bytes`` is None for a pipe."""

    format: TraceFormat
    is_gzip: bool
    total_bytes: int | None


class Trace(Iterator[TraceRequest]):
    """One pass over the requests of a trace, in the order of the file; memory does not grow with it.

    A context manager that owns the file: it is closed by ``close``, at the end, at the limit, and by an error.
    ``bytes_read`` of ``total_bytes`` tells how far the pass is.  Raises :class:`InputError` that names file and line.
    """

    def __init__(self, path: Path, limit: int | None) -> None:
        if limit is not None and limit < 1:
            raise InputError(f"{path}: a limit of {limit} requests; use 1 or more")
        self._limit = limit
        self._ordinal = 0
        self._lines = Lines(path)
        try:
            first = next(self._lines, None)
            if first is None:
                raise InputError(f"{path}: empty; give a trace with at least one request")
            self._format, self._parse = recognise(first)
        except Malformed as error:
            self.close()
            raise self._lines.error(error.found, error.remedy) from None
        except InputError:
            self.close()
            raise
        # A header has been used up; a request has not.
        self._pending = None if self._format is TraceFormat.AZURE else first

    @property
    def info(self) -> TraceInfo:
        """Format, compression and size."""
        return TraceInfo(self._format, self._lines.is_gzip, self._lines.total_bytes)

    @property
    def bytes_read(self) -> int:
        """Bytes read of the file so far, compressed where it is; at the end equal to ``total_bytes``."""
        return self._lines.bytes_read

    @property
    def total_bytes(self) -> int | None:
        """Size of the file; None for a pipe."""
        return self._lines.total_bytes

    def close(self) -> None:
        """Close the file; again is harmless."""
        self._lines.close()
        self._limit = self._ordinal = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __next__(self) -> TraceRequest:
        try:
            return self._next()
        except (StopIteration, InputError):
            self.close()
            raise

    def _next(self) -> TraceRequest:
        if self._ordinal == self._limit:
            raise StopIteration
        line, self._pending = self._pending, None
        if line is None:
            line = next(self._lines, None)
        if line is None and self._ordinal == 0:
            raise InputError(f"{self._lines.path}: a header and no request; give at least one")
        if line is None:
            raise StopIteration
        if self._ordinal == MAX_REQUESTS:
            raise self._lines.error(f"more than {MAX_REQUESTS} requests", "split the trace, or set a limit")
        try:
            request = self._parse(line, self._ordinal)
        except Malformed as error:
            raise self._lines.error(error.found, error.remedy) from None
        self._ordinal += 1
        return request


def open_trace(path: str | os.PathLike[str], limit: int | None = None) -> Trace:
    """Return the requests of the trace at ``path``, the first ``limit`` of them or all; nothing is read twice.

    Normalised JSON Lines, Mooncake JSON Lines and Azure CSV, plain or gzip, are told apart by their content.  Raises
    :class:`InputError` at once for a file that is absent, empty or none of these, and during the pass for the first
    line that is not as promised; what was given out before stays good.
    """
    return Trace(Path(path), limit)
