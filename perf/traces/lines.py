"""The lines of a file that is plain or gzip, with every limit kept; memory does not grow with the file."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.traces.limits import MAX_LINE_BYTES, MAX_RATIO, MAX_TOTAL_BYTES, RATIO_FROM_BYTES

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: Bytes read from the file at once.
_BUFFER_BYTES = 1 << 16

_GZIP = b"\x1f\x8b"

_UTF8_BOM = b"\xef\xbb\xbf"

#: What else a file may turn out to be by its first bytes, and what its owner can do.
_OTHER_CONTENT = {
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; use gzip or unpack it first",
    b"\xfd7zX": "compressed by xz; use gzip or unpack it first",
    b"BZh": "compressed by bzip2; use gzip or unpack it first",
    b"\xff\xfe": "text in UTF-16; save it as UTF-8",
    b"\xfe\xff": "text in UTF-16; save it as UTF-8",
}


class _Counted(io.RawIOBase):
    """A file that counts what is read of it."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.bytes_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        got = self._file.readinto(buffer)
        self.bytes_read += got or 0
        return got

    def close(self) -> None:
        self._file.close()
        super().close()


class Lines:
    """Iterator over the lines of a file, decoded and without their ends; blank ones may stand at its end only.

    A blank line before others is an editor's slip, or where something is missing: to pass it over would hide the one to
    spare the other.  Owns the file until :meth:`close`.  ``number`` is the line last read, from 1.  Raises
    :class:`InputError` that names file and line for what cannot be read or passes a limit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self._decompressed = 0
        try:
            file = io.FileIO(path)
        except IsADirectoryError:
            raise InputError(f"{path}: a folder; name one trace in it") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be opened ({error.strerror}); check the name") from None
        try:
            status = os.fstat(file.fileno())
            #: Size of the file as it lies on the disk; None for a pipe, which tells none.
            self.total_bytes = status.st_size if stat.S_ISREG(status.st_mode) else None
            self._counted = _Counted(file)
            buffered = io.BufferedReader(self._counted, _BUFFER_BYTES)
            head = buffered.peek(4)
            for magic, what in _OTHER_CONTENT.items():
                if head.startswith(magic):
                    raise InputError(f"{path}: {what}")
            self.is_gzip = head.startswith(_GZIP)
            self._buffered = buffered
            self._stream: io.BufferedIOBase = gzip.GzipFile(fileobj=buffered) if self.is_gzip else buffered
        except OSError as error:
            file.close()
            raise InputError(f"{path}: cannot be read ({error.strerror}); check the file") from None
        except InputError:
            file.close()
            raise

    @property
    def bytes_read(self) -> int:
        """Bytes read of the file so far, compressed where it is; runs ahead of the lines by at most one buffer."""
        return self._counted.bytes_read

    def error(self, found: str, remedy: str) -> InputError:
        """Return the error about the line last read."""
        return InputError(f"{self.path}, line {self.number}: {found}; {remedy}")

    def close(self) -> None:
        """Close the file; again is harmless."""
        self._stream.close()
        self._buffered.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        blank = 0
        while line := self._read():
            if self.number == 1:
                line = line.removeprefix(_UTF8_BOM)
            if line and not line.isspace():
                break
            blank = blank or self.number
        else:
            raise StopIteration
        if blank:
            self.number = blank
            raise self.error("blank, and others follow", "remove it, or put back what is missing")
        try:
            return line.rstrip(b"\r\n").decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"byte {error.start + 1} is no UTF-8", "save the file as UTF-8") from None

    def _read(self) -> bytes:
        """Return the next line with its end, empty at the end of the file."""
        self.number += 1
        try:
            line = self._stream.readline(MAX_LINE_BYTES + 1)
        except EOFError:
            raise self.error("the gzip data end early", "the file was cut short; fetch it again") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self.error(f"damaged gzip data ({error})", "fetch the file again") from None
        except OSError as error:
            raise self.error(
                f"cannot be read ({error.strerror})", "check the disk or the connection"
            ) from None
        if len(line) > MAX_LINE_BYTES:
            raise self.error(f"more than {MAX_LINE_BYTES} bytes in one line", "write one request a line")
        self._decompressed += len(line)
        if self._decompressed > MAX_TOTAL_BYTES:
            raise self.error(f"more than {MAX_TOTAL_BYTES} bytes so far", "split the trace")
        ratio_bytes = self.bytes_read * MAX_RATIO
        if self.is_gzip and self._decompressed > max(RATIO_FROM_BYTES, ratio_bytes):
            raise self.error(
                f"{self._decompressed} bytes out of {self.bytes_read} compressed ones",
                f"no trace compresses {MAX_RATIO} times; if it is one, unpack it first",
            )
        return line
