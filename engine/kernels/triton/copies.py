"""Copies of bytes: columns from page to page, and runs of pages to and from the Host layout.

One launch serves many planes: addresses come in a table and are turned into pointers here, so that the number of
launches does not grow with the layers.  A *unit* is the widest word that divides every address, stride and size of
the launch.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_columns(planes, copies, heads, UNIT: tl.constexpr, BLOCK: tl.constexpr, PLANE_FIELDS: tl.constexpr):
    """Copy the first columns of pages; grid (copies · heads, planes).

    ``planes``: int64 ``[planes, 4]``: address, bytes from page to page, from head to head, bytes of one column.
    ``copies``: int64 ``[copies, 3]``: source, destination, columns.
    """
    plane = planes + tl.program_id(1) * PLANE_FIELDS
    which, head = tl.program_id(0) // heads, (tl.program_id(0) % heads).to(tl.int64)
    source_page, destination_page = tl.load(copies + which * 3), tl.load(copies + which * 3 + 1)
    address, page_stride = tl.load(plane), tl.load(plane + 1)
    units = tl.load(copies + which * 3 + 2) * tl.load(plane + 3) // UNIT
    base = address + head * tl.load(plane + 2)
    _copy(base + source_page * page_stride, base + destination_page * page_stride, units, 0, 1, UNIT, BLOCK)


@triton.jit
def transfer(
    rows,
    runs,
    TO_HOST: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    ROW_FIELDS: tl.constexpr,
):
    """Copy runs of pages between device and host; grid (PARTS, runs, rows): parts share one run in turn.

    ``rows``: int64 ``[rows, 3]``: address of page 0 on the device, of slot 0 on the host, bytes of a page; one for each
    outer row of each section.  ``runs``: int64 ``[runs, 3]``: device page, slot, pages.
    """
    row, run = rows + tl.program_id(2) * ROW_FIELDS, runs + tl.program_id(1) * 3
    page_bytes = tl.load(row + 2)
    device = tl.load(row) + tl.load(run) * page_bytes
    host = tl.load(row + 1) + tl.load(run + 1) * page_bytes
    units = tl.load(run + 2) * page_bytes // UNIT
    if TO_HOST:
        _copy(device, host, units, tl.program_id(0), PARTS, UNIT, BLOCK)
    else:
        _copy(host, device, units, tl.program_id(0), PARTS, UNIT, BLOCK)


@triton.jit
def _copy(source, destination, units, part, PARTS: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    """Copy ``units`` words between two addresses; part ``part`` of ``PARTS`` takes every so many-th block."""
    if UNIT == 8:
        source = source.to(tl.pointer_type(tl.int64))
        destination = destination.to(tl.pointer_type(tl.int64))
    elif UNIT == 4:
        source = source.to(tl.pointer_type(tl.int32))
        destination = destination.to(tl.pointer_type(tl.int32))
    elif UNIT == 2:
        source = source.to(tl.pointer_type(tl.int16))
        destination = destination.to(tl.pointer_type(tl.int16))
    else:
        source = source.to(tl.pointer_type(tl.int8))
        destination = destination.to(tl.pointer_type(tl.int8))
    for start in range(part.to(tl.int64) * BLOCK if PARTS > 1 else 0, units, PARTS * BLOCK):
        index = start + tl.arange(0, BLOCK)
        mask = index < units
        tl.store(destination + index, tl.load(source + index, mask=mask), mask=mask)
