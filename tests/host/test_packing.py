"""The packed layout and its copies, against copying every page by itself.

Verifies: byte figures follow from the plane list; sections tile the extent; runs are as few as can be and cover exactly
what was asked; packing and unpacking move every byte of the pages in question and no other, for every profile and both
plane orders.  Does not verify: that copies overlap with anything, which only a device could show.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import PROFILES, Geometry, PlaneOrder
from kvcrucible.engine.host.packing import CopyRun, PackedLayout, coalesce

BOTH_ORDERS = pytest.mark.parametrize("order", list(PlaneOrder))


def in_order(device_pages: list[int]) -> list[CopyRun]:
    """Return the runs for pages in logical order, the first one going to slot 0."""
    return coalesce((device, slot) for slot, device in enumerate(device_pages))


@BOTH_ORDERS
@pytest.mark.parametrize("profile", PROFILES)
@given(layers=st.integers(1, 3), heads=st.integers(1, 3), pages=st.integers(1, 5))
def test_sections_tile_the_extent(
    profile: str, order: PlaneOrder, layers: int, heads: int, pages: int
) -> None:
    layout = PackedLayout(PROFILES[profile], Geometry(layers, heads, 256), 8, order, pages)
    position = 0
    for section in layout.sections:
        assert section.offset_bytes == position
        begins = [section.offset_of(s, o) for o in range(section.outer) for s in range(pages)]
        assert begins == list(range(position, position + section.size_bytes, section.page_bytes))
        position += section.size_bytes
    assert position == layout.size_bytes == pages * PROFILES[profile].bytes_per_page_group(layout.geometry, 8)
    assert [(s.layer, s.plane) for s in layout.sections] == [
        (layer, plane) for layer in range(layers) for plane in PROFILES[profile].planes
    ]


def test_the_figures_of_a_27b_like_main_pool() -> None:
    geometry = Geometry(16, 4, 256)
    sizes = {
        name: PackedLayout(PROFILES[name], geometry, 64, PlaneOrder.PAGE_MAJOR, 2).size_bytes
        for name in ("BF16", "INT8-G64")
    }
    assert sizes == {"BF16": 2 * 4 * 2**20, "INT8-G64": 2 * 33 * 2**16}


PLACED = st.permutations(range(9)).flatmap(
    lambda devices: st.sets(st.integers(0, 8)).flatmap(
        lambda slots: st.permutations([(devices[slot], slot) for slot in sorted(slots)])
    )
)


@given(PLACED)
def test_runs_cover_what_was_asked_in_as_few_copies_as_can_be(placed: list[tuple[int, int]]) -> None:
    runs = coalesce(placed)
    covered = [(run.device_page + i, run.slot + i) for run in runs for i in range(run.pages)]
    assert covered == sorted(placed, key=lambda pair: pair[1])
    # A run has to begin wherever no pair stands directly before on both sides; there is no run beyond those.
    assert len(runs) == sum((device - 1, slot - 1) not in placed for device, slot in placed)


def test_runs_by_example() -> None:
    assert in_order([4, 5, 6, 2, 3, 9]) == [CopyRun(4, 0, 3), CopyRun(2, 3, 2), CopyRun(9, 5, 1)]
    assert in_order([3, 2, 1]) == [CopyRun(3, 0, 1), CopyRun(2, 1, 1), CopyRun(1, 2, 1)]
    assert coalesce([(7, 3), (5, 1), (6, 2)]) == [CopyRun(5, 1, 3)]
    assert coalesce([]) == []


@pytest.mark.parametrize(
    "placed",
    [[(1, 0), (1, 1)], [(1, 0), (2, 0)], [(-1, 0)], [(0, -1)], [(-1, 0), (4, 1)], [(0, -1), (4, 1)]],
)
def test_a_page_named_twice_or_below_zero_is_refused(placed: list[tuple[int, int]]) -> None:
    with pytest.raises(BadArgument):
        coalesce(placed)


def test_impossible_layouts_are_refused() -> None:
    for profile, dim, page_size, pages in (("BF16", 4, 8, 0), ("INT8-G64", 32, 8, 1), ("BF16", 4, 12, 1)):
        with pytest.raises(BadArgument):
            PackedLayout(PROFILES[profile], Geometry(1, 1, dim), page_size, PlaneOrder.PAGE_MAJOR, pages)


# -- with bytes --------------------------------------------------------------------------------------------------------

DEVICE_PAGES, SLOTS, P = 7, 5, 4
GEOMETRY = Geometry(2, 3, 256)


def random_planes(profile: str, order: PlaneOrder, seed: int) -> list[Any]:
    """Return planes as a storage keeps them, with random bytes in every one of them."""
    torch = pytest.importorskip("torch")
    dtypes = {
        "float32": torch.float32,
        "float16": torch.float16,
        "bfloat16": torch.bfloat16,
        "int8": torch.int8,
    }
    draw = torch.Generator().manual_seed(seed)
    planes = []
    for _ in range(GEOMETRY.layers):
        for plane in PROFILES[profile].planes:
            row_bytes = plane.bytes_per_row(GEOMETRY.head_dim)
            shape = (DEVICE_PAGES, GEOMETRY.kv_heads, P, row_bytes)
            if order is PlaneOrder.HEAD_MAJOR:
                shape = (GEOMETRY.kv_heads, DEVICE_PAGES, P, row_bytes)
            raw = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)
            memory = raw.view(dtypes.get(plane.element, torch.uint8))
            planes.append(memory.transpose(0, 1) if order is PlaneOrder.HEAD_MAJOR else memory)
    return planes


def page_bytes(planes: list[Any], page: int) -> list[bytes]:
    """Return the bytes of one page, plane by plane and head by head: the naive way to look at it."""
    import torch

    return [
        bytes(plane[page, head].contiguous().view(torch.uint8).flatten().tolist())
        for plane in planes
        for head in range(GEOMETRY.kv_heads)
    ]


def slot_bytes(memory: Any, layout: PackedLayout, offset: int, slot: int) -> list[bytes]:
    """Return the bytes of one slot in the same order, one head at a time."""
    found = []
    for section in layout.sections:
        per_head = section.page_bytes * section.outer // GEOMETRY.kv_heads
        for head in range(GEOMETRY.kv_heads):
            row, within = (head, 0) if layout.order is PlaneOrder.HEAD_MAJOR else (0, head * per_head)
            found.append(memory.read(offset + section.offset_of(slot, row) + within, per_head))
    return found


@pytest.mark.torch
@pytest.mark.usefixtures("backend")
@BOTH_ORDERS
@pytest.mark.parametrize("profile", PROFILES)
@given(devices=st.permutations(range(DEVICE_PAGES)), slots=st.sets(st.integers(0, SLOTS - 1), min_size=1))
@example(devices=[1, 2, 3, 6, 0, 4, 5], slots={0, 1, 2, 3, 4})
@settings(max_examples=3)
def test_pages_go_to_the_host_and_come_back_elsewhere_bit_for_bit(
    profile: str, order: PlaneOrder, devices: list[int], slots: set[int]
) -> None:
    pytest.importorskip("torch")
    from kvcrucible.engine.storage.host_memory import TorchHostMemory

    layout = PackedLayout(PROFILES[profile], GEOMETRY, P, order, SLOTS)
    margin = 3  # bytes before and after the extent, which are somebody else's
    memory = TorchHostMemory(layout.size_bytes + 2 * margin)
    memory.fill(0, len(memory.buffer), 0x5A)
    source, target = random_planes(profile, order, 1), random_planes(profile, order, 2)
    placed = [(devices[slot], slot) for slot in slots]
    source_before = [page_bytes(source, page) for page in range(DEVICE_PAGES)]
    target_before = [page_bytes(target, page) for page in range(DEVICE_PAGES)]

    memory.pack(layout, margin, source, coalesce(placed))
    assert [page_bytes(source, page) for page in range(DEVICE_PAGES)] == source_before
    for slot in range(SLOTS):
        held = slot_bytes(memory, layout, margin, slot)
        if slot in slots:
            assert held == source_before[devices[slot]]
        else:
            assert set(b"".join(held)) == {0x5A}
    assert memory.read(0, margin) == memory.read(margin + layout.size_bytes, margin) == b"\x5a" * margin

    # Back to other pages, one after the other, so that the runs are others than before.
    back = {slot: DEVICE_PAGES - SLOTS + slot for slot in slots}
    memory.unpack(layout, margin, target, coalesce([(page, slot) for slot, page in back.items()]))
    expected = list(target_before)
    for slot, page in back.items():
        expected[page] = source_before[devices[slot]]
    assert [page_bytes(target, page) for page in range(DEVICE_PAGES)] == expected


@pytest.mark.torch
@pytest.mark.usefixtures("backend")
def test_planes_of_a_storage_are_taken_as_they_are() -> None:
    pytest.importorskip("torch")
    from kvcrucible.engine.storage.host_memory import TorchHostMemory
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    storage = TorchStorage(PROFILES["BF16"], Geometry(2, 3, 8), 4, P, 1, 4)
    layout = PackedLayout(storage.profile, storage.geometry, P, PlaneOrder.PAGE_MAJOR, 2)
    memory = TorchHostMemory(layout.size_bytes)
    storage.raw_write(3, 0, P, 1.5)
    storage.raw_write(1, 0, P, -2.0)
    memory.pack(layout, 0, storage.planes(), in_order([3, 1]))
    memory.unpack(layout, 0, storage.planes(), in_order([0, 2]))
    for page, value in ((0, 1.5), (2, -2.0)):
        keys, values = storage.read_page(1, page, P)
        assert (keys == value).all()
        assert (values == value).all()


@pytest.mark.torch
@pytest.mark.usefixtures("backend")
def test_copies_that_cannot_be_meant_are_refused_and_change_nothing() -> None:
    pytest.importorskip("torch")
    from kvcrucible.engine.storage.host_memory import TorchHostMemory

    order = PlaneOrder.PAGE_MAJOR
    layout = PackedLayout(PROFILES["BF16"], GEOMETRY, P, order, SLOTS)
    memory = TorchHostMemory(layout.size_bytes)
    planes = random_planes("BF16", order, 3)
    good = CopyRun(0, 0, 1)
    for arguments in (
        (0, planes[:-1], [good]),
        (1, planes, [good]),
        (-1, planes, [good]),
        (0, random_planes("BF16", PlaneOrder.HEAD_MAJOR, 3), [good]),
        (0, random_planes("FP32", order, 3), [good]),
        (0, planes, [good, CopyRun(DEVICE_PAGES - 1, 1, 2)]),
        (0, planes, [good, CopyRun(0, SLOTS - 1, 2)]),
        (0, planes, [good, CopyRun(0, 1, 0)]),
        (0, planes, [good, CopyRun(-1, 1, 1)]),
        (0, planes, [good, CopyRun(0, 1, 1)]),
        (0, planes, [CopyRun(0, 0, 2), CopyRun(4, 1, 1)]),
    ):
        with pytest.raises(BadArgument):
            memory.pack(layout, *arguments)
    assert not memory.buffer.any()


def test_slots_of_a_random_sequence_take_one_copy_for_each_break() -> None:
    draw = random.Random(7)
    devices = list(range(200))
    draw.shuffle(devices)
    breaks = sum(b != a + 1 for a, b in pairwise(devices))
    assert len(in_order(devices)) == breaks + 1
