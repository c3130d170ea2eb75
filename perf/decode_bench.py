"""Paged decode attention on the CPU, side by side with contiguous attention and with plain reading.

Three things take turns, round after round, so that whatever else the machine does meets all of them alike: the paged
kernels over permuted pages; torch's ``scaled_dot_product_attention`` over contiguous keys and values with the query
heads of a group folded into the query length, which is the faster way to call it; and reading the same planes without
doing anything with them.  Ratios are formed within a round, and their median is told with its quartiles.

The three work on equal numbers, and the two results are compared.  Verifies speed, not kernels: the tests do that.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvcrucible.contract.errors import BadArgument, NotRunError
from kvcrucible.contract.profiles import Geometry, storage_profile
from kvcrucible.engine.kernels import cpu_backend, cpu_library
from kvcrucible.engine.kernels.api import paged_attention
from kvcrucible.engine.storage.torch_storage import TorchStorage
from kvcrucible.perf.decode_profiles import PROFILES


@dataclass(frozen=True, slots=True)
class Shape:
    """A decode step: one query for each of ``batch`` rows.  The default is a layer of an 8B-like model."""

    batch: int = 8
    query_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 64


@dataclass(frozen=True, slots=True)
class Spread:
    """Quartiles of a figure over the rounds."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class CaseFigures:
    """One profile at one context; times in milliseconds, of the median round.

    ``speedup``: contiguous time over paged time; ``of_read``: reading time over paged time, which is the fraction of
    the read bandwidth that paged decode reaches.  ``working_bytes``: what one call allocates beyond its results.
    ``difference``: largest distance between the two outputs.
    """

    profile: str
    context: int
    kv_bytes: int
    paged_ms: float
    contiguous_ms: float
    read_ms: float
    speedup: Spread
    of_read: Spread
    working_bytes: int
    difference: float

    @property
    def paged_gb_per_s(self) -> float:
        """Keys and values read in a second, in 10⁹ bytes."""
        return self.kv_bytes / self.paged_ms / 1e6

    @property
    def read_gb_per_s(self) -> float:
        """The same for plain reading."""
        return self.kv_bytes / self.read_ms / 1e6


@dataclass(frozen=True, slots=True)
class Machine:
    """Where figures were taken, in words; no name or path of the machine."""

    processor: str
    cores: int
    threads: int
    torch: str
    compiler: str
    flags: str


def machine() -> Machine:
    """Describe this machine.  Raises ``NotRunError`` where the kernels cannot be compiled."""
    reason = cpu_library.why_not()
    if reason is not None:
        raise NotRunError(f"the compiled kernels cannot be used: {reason}")
    built = cpu_library.library().built
    return Machine(
        _processor(),
        _cores(),
        torch.get_num_threads(),
        torch.__version__,
        built.compiler.version,
        " ".join(flag for flag in built.flags if flag.startswith(("-O", "-m"))),
    )


def measure(profile: str, context: int, shape: Shape, rounds: int) -> CaseFigures:
    """Take the figures of one case with the threads that torch has now.

    Needs twice the keys and values in memory.  Raises ``BadArgument`` for a profile that is not of ``PROFILES`` or
    fewer than 3 rounds, ``NotRunError`` where the kernels cannot be compiled.
    """
    if profile not in PROFILES or rounds < 3:
        found = f"profiles {', '.join(PROFILES)}, at least 3 rounds"
        raise BadArgument(f"{rounds} rounds of {profile}", found, "use these")
    machine()
    storage, keys, values, q = _filled(profile, context, shape)
    view, rows = storage.layer_view(0), list(range(shape.batch))
    contexts = [context] * shape.batch
    folded = q.view(shape.batch, shape.kv_heads, shape.query_heads // shape.kv_heads, shape.head_dim)
    calls: tuple[Callable[[], object], ...] = (
        lambda: paged_attention(q, view, rows, [1] * shape.batch, contexts, backend="cpu"),
        lambda: scaled_dot_product_attention(folded, keys, values),
        lambda: cpu_backend.read_through(storage.planes()),
    )
    out, _ = paged_attention(q, view, rows, [1] * shape.batch, contexts, backend="cpu")
    contiguous = scaled_dot_product_attention(folded, keys, values).view_as(out)
    times = [_timed(calls) for _ in range(rounds + 1)][1:]  # the first warms up
    paged, plain, read = (statistics.median(column) for column in zip(*times, strict=True))
    return CaseFigures(
        profile,
        context,
        storage.plane_bytes,
        paged,
        plain,
        read,
        _spread([plain / paged for paged, plain, _ in times]),
        _spread([read / paged for paged, _, read in times]),
        cpu_backend.working_memory(view, shape.query_heads, [1] * shape.batch, contexts),
        float((out.float() - contiguous.float()).abs().max()),
    )


def _filled(profile: str, context: int, shape: Shape) -> tuple[TorchStorage, Tensor, Tensor, Tensor]:
    """Return a storage with permuted pages, the same keys and values ``[B, Hkv, context, D]``, and queries."""
    blocks = -(-context // shape.page_size)
    storage = TorchStorage(
        storage_profile(profile),
        Geometry(1, shape.kv_heads, shape.head_dim),
        shape.batch * blocks,
        shape.page_size,
        shape.batch,
        blocks,
    )
    dtype = storage.planes()[0].dtype
    draw = torch.Generator().manual_seed(0)
    pages = torch.randperm(storage.capacity_pages, generator=draw).tolist()
    size = (shape.batch, shape.kv_heads, context, shape.head_dim)
    keys, values = torch.empty(size, dtype=dtype), torch.empty(size, dtype=dtype)
    for row in range(shape.batch):
        storage.write_table(row, 0, pages[row * blocks : (row + 1) * blocks])
        k, v = (
            torch.randn((context, shape.kv_heads, shape.head_dim), generator=draw).to(dtype) for _ in range(2)
        )
        storage.append(0, [row], [0], [context], k, v)
        keys[row], values[row] = k.transpose(0, 1), v.transpose(0, 1)
    q = torch.randn((shape.batch, shape.query_heads, shape.head_dim), generator=draw).to(dtype)
    return storage, keys, values, q


def _timed(calls: tuple[Callable[[], object], ...]) -> tuple[float, ...]:
    """Run each call once and return how long each took, in milliseconds."""
    marks = [time.perf_counter()]
    for call in calls:
        call()
        marks.append(time.perf_counter())
    return tuple((stop - start) * 1e3 for start, stop in pairwise(marks))


def _spread(values: list[float]) -> Spread:
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(low, median, high)


def _processor(source: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    widest = next((name for name in ("avx512f", "avx2", "avx") if name in flags), "")
    return ", ".join(part for part in (model or platform.machine(), widest) if part)


def _cores() -> int:
    """Return on how many processors this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
