"""Builds an engine where its user wants it: planes, tables, streams and Host memory on one torch device.

The only place at which a device is chosen by name.  Torch is imported when an engine is placed, not when this module
is.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcrucible.contract.config import EngineConfig
from kvcrucible.contract.errors import BadArgument, NotRunError
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.streams import Device, ImmediateDevice
from kvcrucible.engine.streams.cuda import CudaDevice
from kvcrucible.engine.streams.cuda_runtime import TorchCuda, why_no_torch

if TYPE_CHECKING:
    from kvcrucible.engine.storage.host_memory import TorchHostMemory
    from kvcrucible.engine.storage.torch_storage import TorchStorage


#: An index of a device as its name writes it.
_INDEX = re.compile("[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class Placement:
    """An engine and what it stands on; whoever holds this owns all of it.

    ``device``: its streams.  ``storages``: one for each pool.  ``host_memory``: the bytes of the Host tier, None where
    the configuration has none.
    """

    engine: Engine
    device: Device
    storages: tuple[TorchStorage, ...]
    host_memory: TorchHostMemory | None


def place(config: EngineConfig, where: str = "cpu", *, kernels: str | None = None) -> Placement:
    """Return a new engine for ``config`` with all its memory allocated, on ``where``: ``cpu``, ``cuda`` or ``cuda:N``.

    On the CPU effects take place at once.  On CUDA they go through CUDA streams, and the Host tier's memory is pinned.
    ``kernels`` names the back-end; None is the best that works there.

    Raises ``BadArgument`` for another device, a pool that does not declare exactly one kind of planes, or where pinning
    is refused; ``NotRunError`` where torch is not installed, or there is no such CUDA device.
    """
    kind, colon, index = where.partition(":")
    if kind not in ("cpu", "cuda") or (colon and (kind == "cpu" or not _INDEX.fullmatch(index))):
        raise BadArgument(
            f"an engine on {where!r:.40}", "cpu, cuda and cuda:N are known", "name one of these"
        )
    for pool in config.pools:
        if len(pool.planes) != 1:
            found = f"it declares {len(pool.planes)} kinds of planes"
            raise BadArgument(
                f"pool {pool.name} with storage in torch", found, "declare the one kind that it stores"
            )
    absent = why_no_torch()
    if absent is not None:
        raise NotRunError(absent)
    runtime = TorchCuda(where) if kind == "cuda" else None
    from kvcrucible.engine.storage.host_memory import TorchHostMemory
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    storages = tuple(
        TorchStorage(
            planes.profile,
            planes.geometry,
            pool.capacity_pages,
            planes.page_size,
            config.max_concurrency,
            config.blocks_per_row(number),
            "cpu" if runtime is None else runtime.device,
            pool=number,
            order=planes.order,
            backend=kernels,
        )
        for number, pool in enumerate(config.pools)
        for planes in pool.planes
    )
    memory = None
    if config.host is not None:
        with nullcontext() if runtime is None else runtime.locking():
            memory = TorchHostMemory(config.host.capacity_bytes, pinned=runtime is not None)
    device = ImmediateDevice() if runtime is None else CudaDevice(runtime)
    return Placement(Engine(config, storages, device, host_memory=memory), device, storages, memory)
