"""A pool whose every byte the harness knows: filled by the reference's codecs, never by the engine's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvcrucible.contract.profiles import PROFILES, Geometry, PlaneOrder, Side, StorageProfile
from kvcrucible.engine.storage.torch_storage import TorchStorage
from kvcrucible.fuzz.kernels.cases import Case
from kvcrucible.reference.codecs import group_codec, storing
from kvcrucible.reference.rounding import ROUNDING

Image = NDArray[Any]
Rows = NDArray[np.float64]

#: Free pages beyond those that the rows hold, so that there is something beside them to be read or written by mistake.
SPARE_PAGES = 3

#: What "large" poison is: finite, and far from everything that is drawn.
LARGE = 1e30

#: How page ids may stand to the order of pages.
MAPPINGS = ("identity", "offset", "permuted")

#: The other poison, by the name of one.
OTHER_POISON = {"nan": "large", "large": "nan"}

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}


@dataclass
class Stage:
    """Planes, tables, and an *image* of each plane: the bits that it holds, ``[page, head, offset, stored]``."""

    storage: TorchStorage
    images: list[Image]
    pages: list[list[int]]

    def found(self) -> list[Image]:
        """Return the bits that the planes hold now."""
        return [plane_bits(plane) for plane in self.storage.planes()]


def build(case: Case, backend: str, device: str, mapping: str, poison: str, layers: int = 1) -> Stage:
    """Return a stage with every column poisoned and every row mapped; nothing is written yet."""
    blocks = [-(-length // case.page_size) for length in case.lengths]
    taken = _page_ids(sum(blocks), case, mapping)
    capacity = sum(blocks) + SPARE_PAGES + case.shift
    profile = PROFILES[case.cell.profile]
    storage = TorchStorage(
        profile,
        Geometry(layers, case.kv_heads, case.head_dim),
        capacity,
        case.page_size,
        max(1, len(blocks)),
        max([1, *blocks]),
        device,
        order=PlaneOrder(case.cell.order),
        backend=backend,
    )
    pages: list[list[int]] = []
    for row, count in enumerate(blocks):
        pages.append([taken.pop(0) for _ in range(count)])
        storage.write_table(row, 0, pages[-1])
    value = np.full((1, case.head_dim), np.nan if poison == "nan" else LARGE)
    patterns = [bits[0] for side in Side for bits in encode(profile, side, value)] * layers
    images = []
    for plane, pattern in zip(storage.planes(), patterns, strict=True):
        images.append(np.broadcast_to(pattern, tuple(plane.shape)).copy())
    stage = Stage(storage, images, pages)
    upload(stage)
    return stage


def write_rows(stage: Stage, case: Case, row: int, start: int, k: Rows, v: Rows) -> list[tuple[int, int]]:
    """Put rows ``[n, Hkv, D]`` at positions ``start …`` of a row into the images; return their (page, offset)."""
    profile = PROFILES[case.cell.profile]
    patterns = [
        bits for side, values in zip(Side, (k, v), strict=True) for bits in encode(profile, side, values)
    ]
    slots = []
    for token in range(len(k)):
        block, offset = divmod(start + token, case.page_size)
        page = stage.pages[row][block]
        slots.append((page, offset))
        for image, bits in zip(stage.images, patterns, strict=True):
            image[page, :, offset] = bits[token]
    return slots


def upload(stage: Stage) -> None:
    """Make the planes hold what the images say."""
    for plane, image in zip(stage.storage.planes(), stage.images, strict=True):
        memory = torch.from_numpy(np.ascontiguousarray(image).view(np.uint8))
        plane.copy_(memory.view(plane.dtype).view(tuple(plane.shape)))


def encode(profile: StorageProfile, side: Side, values: Rows) -> list[Image]:
    """Return the bits that the reference stores for ``values [..., D]``, one array for each plane of the side."""
    codec = group_codec(profile, side)
    if codec is None:
        rounded = ROUNDING[profile.name](values).astype(np.float32).view(np.uint32)
        return [rounded if profile.name == "FP32" else (rounded >> 16).astype(np.uint16)]
    codes, scales = codec.encode(values)
    return [codes.astype(np.uint8), scales.astype(np.uint16 if codec.scale == "float16" else np.uint8)]


def stored(case: Case, k: Rows, v: Rows) -> tuple[Rows, Rows]:
    """Return what keys and values read as once they are stored."""
    profile = PROFILES[case.cell.profile]
    return storing(profile, Side.KEY)(k), storing(profile, Side.VALUE)(v)


def plane_bits(plane: torch.Tensor) -> Image:
    """Return a plane's bits as unsigned integers of its own width, a copy."""
    memory = plane.detach().cpu().contiguous()
    flat = memory.view(torch.uint8).numpy().view(_UNSIGNED[plane.element_size()])
    return flat.reshape(tuple(plane.shape)).copy()


def is_nan(bits: Image, dtype: torch.dtype) -> NDArray[np.bool_]:
    """Tell which bits of a plane of numbers are a NaN; none of a plane of codes or scales."""
    if dtype == torch.float32:
        return (bits & 0x7FFFFFFF) > 0x7F800000
    if dtype == torch.bfloat16:
        return (bits & 0x7FFF) > 0x7F80
    return np.zeros(bits.shape, dtype=bool)


def _page_ids(count: int, case: Case, mapping: str) -> list[int]:
    ids = list(range(count))
    if mapping == "offset":
        return [page + case.shift for page in ids]
    if mapping == "permuted":
        return random.Random(case.shuffle).sample(range(count + SPARE_PAGES + case.shift), count)
    return ids


def numbers(case: Case, count: int, draw: np.random.Generator, *, special: bool = False) -> Rows:
    """Return float32 rows ``[count, Hkv, D]`` as float64, some with what codecs treat apart."""
    rows = (draw.standard_normal((count, case.kv_heads, case.head_dim)) * 3).astype(np.float32)
    if special and rows.size:
        extremes: Sequence[float] = (
            0.0,
            -0.0,
            np.nan,
            np.inf,
            -np.inf,
            1e30,
            -3e38,
            1e-40,
            2.0**-149,
            448.0,
            6.0,
        )
        places = draw.integers(0, rows.size, size=max(1, rows.size // 50))
        rows.reshape(-1)[places] = draw.choice(np.array(extremes, dtype=np.float32), size=len(places))
        scales = np.exp2(draw.integers(-30, 30, size=(count, case.kv_heads, 1))).astype(np.float32)
        with np.errstate(over="ignore", under="ignore"):
            rows = rows * scales
    return rows.astype(np.float64)
