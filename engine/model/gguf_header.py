"""Walks a GGUF header within limits, before the library reads it.

Verifies: magic, version, byte order, that every length and count fits in the file and under a limit, that
every tensor lies inside the file.  Does not verify: what the metadata mean, which tensors there are, or
their values.

The walk exists because ``gguf.GGUFReader`` trusts its file: past the end it goes on with empty arrays, so
that a truncated file with a large array count keeps it allocating.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import BinaryIO, NoReturn

from kvcrucible.contract.errors import InputError

#: Metadata entries; models in use have 20 to 60.
MAX_ENTRIES = 4_096
#: Tensors; a decoder of 126 layers has about 1,200.
MAX_TENSORS = 65_536
#: Bytes of one string; the longest in use is a chat template of some 20 kB.
MAX_STRING_BYTES = 1 << 20
#: Elements of all arrays together: tokens, scores, types and merges of a vocabulary of 262,144.
#: The reader keeps an object for each.
MAX_ARRAY_ELEMENTS = 1 << 20
#: Elements of all tensors together; as float32 they take 8 GB.
MAX_PARAMETERS = 2_000_000_000
#: ggml has at most four dimensions.
MAX_DIMENSIONS = 4

_STRING, _ARRAY = 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def check_header(path: Path, blocks: dict[int, tuple[int, int]]) -> None:
    """Raise ``InputError`` unless the header of ``path`` can be read safely; nothing is kept.

    ``blocks`` maps each tensor type that can be read to (elements of a block, bytes of a block).
    """
    try:
        with path.open("rb") as stream:
            _Walk(path, stream, path.stat().st_size, blocks).file()
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror or error}; name a GGUF file of the Llama family, or get the demonstration model "
            "with `kvcrucible model fetch`"
        ) from error


class _Walk:
    """One pass over one header; ``_spare_elements`` is what is left of the allowance for arrays."""

    def __init__(
        self, path: Path, stream: BinaryIO, size_bytes: int, blocks: dict[int, tuple[int, int]]
    ) -> None:
        self._path, self._stream, self._size_bytes, self._blocks = path, stream, size_bytes, blocks
        self._spare_elements = MAX_ARRAY_ELEMENTS
        self._alignment = 32

    def file(self) -> None:
        magic = self._stream.read(4)
        if magic != b"GGUF":
            self._refuse(f"not a GGUF file: it starts with {magic!r}")
        version = self._number("<I", "the version")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in (2, 3)
            self._refuse("a big-endian GGUF file" if swapped else f"GGUF version {version}, not 2 or 3")
        tensors = self._count("<Q", "tensors", MAX_TENSORS)
        for _ in range(self._count("<Q", "metadata entries", MAX_ENTRIES)):
            key = self._string("a metadata key")
            value_type = self._number("<I", f"the type of {key!r}")
            if key == "general.alignment" and value_type == 4:
                self._alignment = self._number("<I", "the alignment")
            else:
                self._value(value_type, key)
        if not 1 <= self._alignment <= 1 << 16 or self._alignment & (self._alignment - 1):
            self._refuse(f"alignment {self._alignment}, not a power of two up to 65,536")
        extents = [self._tensor() for _ in range(tensors)]
        start = math.ceil(self._stream.tell() / self._alignment) * self._alignment
        parameters = sum(elements for _, _, _, elements in extents)
        if parameters > MAX_PARAMETERS:
            self._refuse(f"{parameters:,} parameters, more than the {MAX_PARAMETERS:,} that are read")
        for name, offset, length, _ in extents:
            end = start + offset + length
            if end > self._size_bytes:
                self._refuse(
                    f"truncated: tensor {name!r} ends at byte {end:,}, the file at byte {self._size_bytes:,}"
                )

    def _tensor(self) -> tuple[str, int, int, int]:
        """Return name, offset behind the header, length in bytes and elements of the next tensor."""
        name = self._string("a tensor name")
        rank = self._count("<I", f"dimensions of {name!r}", MAX_DIMENSIONS)
        shape = [self._number("<Q", f"the shape of {name!r}") for _ in range(rank)]
        kind = self._number("<I", f"the type of {name!r}")
        offset = self._number("<Q", f"the offset of {name!r}")
        if kind not in self._blocks:
            self._refuse(f"tensor {name!r} has the unknown type {kind}")
        per_block, block_bytes = self._blocks[kind]
        elements = math.prod(shape)
        if not shape or elements == 0 or shape[0] % per_block:
            self._refuse(
                f"tensor {name!r} has shape {shape}, which its type (blocks of {per_block}) cannot have"
            )
        if offset % self._alignment:
            self._refuse(f"tensor {name!r} starts at offset {offset}, not a multiple of {self._alignment}")
        return name, offset, elements // per_block * block_bytes, elements

    def _value(self, value_type: int, key: str) -> None:
        if value_type in _SCALAR_BYTES:
            self._skip(_SCALAR_BYTES[value_type], key)
        elif value_type == _STRING:
            self._string(key)
        elif value_type == _ARRAY:
            item_type = self._number("<I", key)
            count = self._count("<Q", f"elements in {key!r}", self._spare_elements)
            self._spare_elements -= count
            if item_type in _SCALAR_BYTES:
                self._skip(_SCALAR_BYTES[item_type] * count, key)
            elif item_type == _STRING:
                for _ in range(count):
                    self._string(key)
            else:
                self._refuse(f"{key!r} is an array of the unsupported type {item_type}")
        else:
            self._refuse(f"{key!r} has the unknown type {value_type}")

    def _string(self, what: str) -> str:
        length = self._count("<Q", f"bytes in {what}", MAX_STRING_BYTES)
        try:
            return self._read(length, what).decode("utf-8")
        except UnicodeDecodeError:
            self._refuse(f"{what} is not UTF-8")

    def _count(self, layout: str, what: str, limit: int) -> int:
        value = self._number(layout, f"the number of {what}")
        if value > limit:
            self._refuse(f"claims {value:,} {what}, more than the {limit:,} that are read")
        return value

    def _number(self, layout: str, what: str) -> int:
        value: int = struct.unpack(layout, self._read(struct.calcsize(layout), what))[0]
        return value

    def _read(self, length_bytes: int, what: str) -> bytes:
        data = self._stream.read(length_bytes)
        if len(data) < length_bytes:
            self._refuse(f"truncated: the file ends at byte {self._size_bytes:,}, inside {what}")
        return data

    def _skip(self, length_bytes: int, what: str) -> None:
        end = self._stream.tell() + length_bytes
        if end > self._size_bytes:
            self._refuse(f"truncated: the file ends at byte {self._size_bytes:,}, inside {what}")
        self._stream.seek(end)

    def _refuse(self, reason: str) -> NoReturn:
        raise InputError(f"{self._path}: {reason}")
