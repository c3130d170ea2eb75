"""The lines of a history, from a file of a stranger's: every limit kept, every complaint with its line.

Verifies: that each line is one of the format's, within its size, without a key given twice.  What is no such line is an
``InputError``; a file that merely ends too early is ``Undecided``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from kvcrucible.contract import history
from kvcrucible.contract.errors import InputError
from kvcrucible.contract.history import MAX_LINE_BYTES, MAX_PARTS, Line
from kvcrucible.contract.history_header import HISTORY_FORMAT, Header
from kvcrucible.invariants.history.outcome import Undecided

#: Characters of a complaint about a line; the line may be long and hold anything.
_MAX_SHOWN = 200

#: What reading a line may raise; deep nesting ends in the last.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

#: What a file turns out to be by its first bytes, and what its owner can do.
_OTHER_CONTENT = {
    b"\x1f\x8b": "gzip data; unpack it into `kvcrucible check -`",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it into `kvcrucible check -`",
    b"\xef\xbb\xbf": "text with a byte order mark; save it without one",
    b"\xff\xfe": "text in UTF-16; save it as UTF-8",
    b"\xfe\xff": "text in UTF-16; save it as UTF-8",
}


class HistoryReader:
    """Reads a history line by line.  ``number`` is the line last read, from 1; ``header`` is its first line.

    Owns the file until :meth:`close`.  ``path`` "-" is standard input.  Raises ``InputError`` for what cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self._encode = history.encoder()
        try:
            self._file: IO[bytes] = (
                sys.stdin.buffer if str(path) == "-" else path.open("rb", buffering=1 << 18)
            )
        except OSError as error:
            raise InputError(f"{path}: cannot be opened ({error.strerror}); check the name") from None
        try:
            self.header = self._read_header()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; again is harmless."""
        if self._file is not sys.stdin.buffer:
            self._file.close()

    def __enter__(self) -> HistoryReader:
        return self

    def __exit__(self, *about: object) -> None:
        self.close()

    def lines(self) -> Iterator[Line]:
        """Yield every line after the header, those of several parts as one; up to the close line or the end."""
        decode, encode, read = history.decoder(), self._encode, self._readline
        while text := read():
            try:
                line = decode(text)
            except _UNREADABLE as error:
                raise self._unreadable(text, error) from None
            # A line as an engine writes it is as long as what it was read as, written again: nothing was said twice.
            if len(encode(line)) != len(text) - 1:
                self._require_plain(text)
            yield self._whole(line) if line.more else line

    def require_count(self, told: int) -> None:
        """Raise ``InputError`` where the close line, the one last read, counts other lines than stand before it: what
        is missing or was put in cannot be judged, nor what it would have led to.
        """
        found = self.number - 2
        if found != told:
            raise self.error(
                f"the close line counts {told} lines after the header, and there are {found}",
                "the file is damaged; take one as it was written",
            )

    def require_end(self) -> None:
        """Raise ``InputError`` where anything stands after the close line."""
        if self._readline():
            raise self.error("a line after the close line", "a history ends with it")

    def error(self, found: str, remedy: str) -> InputError:
        """Return the error about the line last read."""
        return InputError(f"{self.path}, line {self.number}: {found}; {remedy}")

    # -- internals -----------------------------------------------------------------------------------------------------

    def _readline(self) -> bytes:
        self.number += 1
        try:
            text = self._file.readline(MAX_LINE_BYTES + 1)
        except OSError as error:
            raise self.error(f"cannot be read ({error.strerror})", "check the disk or the file") from None
        if len(text) > MAX_LINE_BYTES:
            raise self.error(f"more than {MAX_LINE_BYTES} bytes", "split the operation by `more`")
        if not text:
            self.number -= 1
        return text

    def _read_header(self) -> Header:
        text = self._readline()
        for magic, what in _OTHER_CONTENT.items():
            if text.startswith(magic):
                raise InputError(f"{self.path}: {what}")
        self.number = 1
        try:
            header = msgspec.json.decode(text, type=Header)
        except _UNREADABLE as error:
            raise self.error(
                f"no header ({_short(str(error))})", f'the first line is {{"format":"{HISTORY_FORMAT}",…}}'
            ) from None
        self._require_plain(text)
        if header.format != HISTORY_FORMAT:
            raise self.error(f"format {header.format!r}", f"this version reads {HISTORY_FORMAT!r}")
        for pool in header.pools:
            if pool.page_size & (pool.page_size - 1):
                raise self.error(f"pages of {pool.page_size} tokens", "use a power of two")
            if header.host is not None and not pool.page_bytes:
                raise self.error(f"a Host tier and no page_bytes of pool {pool.name!r}", "state them")
        names = [pool.name for pool in header.pools]
        if names[0] != "main" or len(set(names)) < len(names):
            raise self.error(f"pools {names}", "put main first, then at most one other")
        return header

    def _whole(self, line: Line) -> Line:
        """Join a line with those that go on with it."""
        decode = history.decoder()
        parts = 1
        while line.more:
            text = self._readline()
            if not text:
                raise Undecided("the file ends in the middle of an operation of several lines")
            try:
                part = decode(text)
            except _UNREADABLE as error:
                raise self._unreadable(text, error) from None
            self._require_plain(text)
            parts += 1
            if parts > MAX_PARTS:
                raise self.error(
                    f"an operation of more than {MAX_PARTS} lines", "it is too large to be judged"
                )
            if type(part) is not type(line):
                raise self.error(
                    "another operation than the line before goes on with", "keep the parts together"
                )
            self._join(line, part)
        return line

    def _join(self, line: Line, part: Line) -> None:
        """Add a part to a line: lists go on, and what the part says beside must be what the line says, or be new."""
        for name in part.__struct_fields__:
            value, before = getattr(part, name), getattr(line, name)
            if name == "more":
                line.more = value
                continue
            # A list goes on even where it says the same once more: a prompt may well repeat its runs.
            if isinstance(value, list) and isinstance(before, list):
                if not value:
                    continue
                if name == "work":
                    value = self._join_work(before, value)
                if name == "started":
                    value = self._join_started(before, value)
                if name in ("pages", "generations"):
                    before[:] = _per_pool(before, value)
                    continue
                if name == "counters":
                    raise self.error("counters twice in one operation", "write them on its last line")
                setattr(line, name, before + value)
                continue
            if value != before:
                if before is not None:
                    raise self.error(f"another {name!r} than the lines before", "every part repeats it")
                setattr(line, name, value)

    def _join_work(self, before: list[history.Work], more: list[history.Work]) -> list[history.Work]:
        """Let the first work of a part go on with the last one so far, if it is of the same sequence."""
        if not before or before[-1].sequence != more[0].sequence:
            return more
        last, first = before[-1], more[0]
        if (last.append is None) != (first.append is None) or first.backend is not None:
            raise self.error("a work that goes on otherwise than it began", "split prefill or append alone")
        if last.append is not None and first.append is not None:
            last.append = last.append + first.append
        if last.prefill is not None or first.prefill is not None:
            last.prefill = (last.prefill or 0) + (first.prefill or 0)
        last.pages = _per_pool(last.pages, first.pages)
        last.generations = _per_pool(last.generations, first.generations)
        return more[1:]

    def _join_started(
        self, before: list[history.Started], more: list[history.Started]
    ) -> list[history.Started]:
        """Let the first transfer of a part go on with the last one so far, if it is the same."""
        if not before or before[-1].transfer != more[0].transfer:
            return more
        last, first = before[-1], more[0]
        if (first.continuation, first.source) != (last.continuation, last.source) or (
            first.positions not in (0, last.positions)
        ):
            raise self.error("a transfer that goes on otherwise than it began", "split its lists alone")
        last.pages = _per_pool(last.pages, first.pages)
        last.generations = _per_pool(last.generations, first.generations)
        for name in ("extents", "beside", "given_up", "evicted"):
            setattr(last, name, getattr(last, name) + getattr(first, name))
        return more[1:]

    def _unreadable(self, text: bytes, error: Exception) -> InputError | Undecided:
        if not text.endswith(b"\n"):
            return Undecided("the file ends in the middle of a line")
        return self.error(_short(str(error)), "write one line of the format, compact JSON")

    def _require_plain(self, text: bytes) -> None:
        """Raise where a line gives a key twice; slow, and for lines that are not as compact as they could be."""
        try:
            json.loads(text, object_pairs_hook=self._unique)
        except RecursionError:
            raise self.error("nested too deeply", "write one line of the format") from None
        except ValueError as error:
            raise self.error(_short(str(error)), "write one line of the format, compact JSON") from None

    def _unique(self, pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise self.error(f"key {_short(twice)!r} twice in one object", "keep one of the two")


def _per_pool(before: list[list[int]], more: list[list[int]]) -> list[list[int]]:
    size = max(len(before), len(more))
    return [
        (before[pool] if pool < len(before) else []) + (more[pool] if pool < len(more) else [])
        for pool in range(size)
    ]


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
