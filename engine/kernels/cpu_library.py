"""The compiled kernels as Python sees them: the structs of ``csrc`` in ctypes, and the library, loaded once.

Each class mirrors the struct of the same name, field by field; ``INTERFACE`` is the number that the library has to
answer with, and changes with any of them.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache

from kvcrucible.engine.kernels.cpu_build import Built, Unbuildable, obtain

INTERFACE = 1

#: ``enum code`` and ``enum scale`` by the contract's element names.
CODES = {"float32": 0, "bfloat16": 1, "int8": 2, "e4m3fn": 3, "e2m1": 4}
SCALES = {"": 0, "float16": 1, "e4m3fn": 2}

#: ``LANES`` is at most this many floats; LINES, TILE, LARGEST_GROUP are the C constants of these names.
MOST_LANES, LINES, TILE, LARGEST_GROUP = 16, 32, 64, 1024
#: ``FLOATS_AN_ITEM`` of ``read.c``.
READ_FLOATS = 1 << 16


class Plane(ctypes.Structure):
    """One plane: address, and strides in bytes."""

    _fields_ = (
        ("bytes", c_void_p),
        ("page_stride", c_int64),
        ("head_stride", c_int64),
        ("offset_stride", c_int64),
        ("row_bytes", c_int64),
    )


class Side(ctypes.Structure):
    """Keys or values of a layer."""

    _fields_ = (
        ("codes", Plane),
        ("scales", Plane),
        ("dim", c_int64),
        ("group", c_int64),
        ("code", c_int32),
        ("scale", c_int32),
    )


class AppendJob(ctypes.Structure):
    """Arguments of ``kv_append``."""

    _fields_ = (
        ("sides", Side * 2),
        ("rows", c_void_p * 2),
        ("slots", c_void_p),
        ("tokens", c_int64),
        ("heads", c_int64),
        ("page_size", c_int64),
        ("rows_are_bf16", c_int32),
    )


class Entry(ctypes.Structure):
    """One row of a batch."""

    _fields_ = tuple(
        (name, c_int64)
        for name in (
            "row",
            "first_query",
            "queries",
            "context",
            "splits",
            "pages_a_split",
            "blocks",
            "lines_a_block",
            "heads_a_span",
            "spans",
            "first_item",
            "first_block",
            "first_partial",
        )
    )


class AttentionJob(ctypes.Structure):
    """Arguments of ``kv_attention``."""

    _fields_ = (
        ("key", Side),
        ("value", Side),
        ("q", c_void_p),
        ("out", c_void_p),
        ("lse", c_void_p),
        ("tables", c_void_p),
        ("entries", POINTER(Entry)),
        ("scratch", c_void_p),
        ("partials", c_void_p),
        ("splits_left", c_void_p),
        ("table_stride", c_int64),
        ("entry_count", c_int64),
        ("item_count", c_int64),
        ("page_size", c_int64),
        ("kv_heads", c_int64),
        ("group", c_int64),
        ("dim", c_int64),
        ("padded_dim", c_int64),
        ("scratch_stride", c_int64),
        ("scale", c_float),
        ("causal", c_int32),
        ("q_is_bf16", c_int32),
    )


class PageCopy(ctypes.Structure):
    """One copy of columns."""

    _fields_ = (("source", c_int64), ("destination", c_int64), ("columns", c_int64))


class CopyJob(ctypes.Structure):
    """Arguments of ``kv_copy_columns``."""

    _fields_ = (
        ("planes", POINTER(Plane)),
        ("copies", POINTER(PageCopy)),
        ("plane_count", c_int64),
        ("copy_count", c_int64),
        ("heads", c_int64),
    )


class Section(ctypes.Structure):
    """One section of an extent, and the plane that belongs to it."""

    _fields_ = (
        ("host", c_void_p),
        ("device", c_void_p),
        ("outer", c_int64),
        ("slots", c_int64),
        ("pages", c_int64),
        ("page_bytes", c_int64),
    )


class Run(ctypes.Structure):
    """One run of pages."""

    _fields_ = (("device_page", c_int64), ("slot", c_int64), ("pages", c_int64))


class TransferJob(ctypes.Structure):
    """Arguments of ``kv_transfer``."""

    _fields_ = (
        ("sections", POINTER(Section)),
        ("runs", POINTER(Run)),
        ("section_count", c_int64),
        ("run_count", c_int64),
        ("to_host", c_int32),
    )


class ReadJob(ctypes.Structure):
    """Arguments of ``kv_read``."""

    _fields_ = (("from", c_void_p), ("count", c_int64), ("seen", c_float))


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded library and how it came about; calls release the interpreter's lock."""

    built: Built
    functions: ctypes.CDLL


@cache
def _outcome() -> Library | str:
    """Return the library, or why there is none; found out once in a process."""
    try:
        built = obtain()
        functions = ctypes.CDLL(str(built.path))
        answered = functions.kv_interface()
    except (Unbuildable, OSError, AttributeError) as error:
        return str(error)
    if answered != INTERFACE:
        return f"the library has interface {answered}, and {INTERFACE} is expected"
    for name in ("kv_append", "kv_attention", "kv_copy_columns", "kv_transfer", "kv_read", "kv_exp"):
        getattr(functions, name).restype = None
    return Library(built, functions)


def why_not() -> str | None:
    """Return why the compiled kernels cannot be used in this process, or None where they can; builds them."""
    found = _outcome()
    return found if isinstance(found, str) else None


def library() -> Library:
    """Return the library; raises :class:`Unbuildable` where there is none."""
    found = _outcome()
    if isinstance(found, str):
        raise Unbuildable(found)
    return found


def forget() -> None:
    """Find out anew at the next call, for tests that change the surroundings; what was loaded stays loaded."""
    _outcome.cache_clear()
