"""Which back-ends there are, what each has to provide, and which of them a call gets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from kvcrucible.contract.errors import BadArgument
from kvcrucible.engine.host.packing import CopyRun
from kvcrucible.engine.kernels import cpu_backend, torch_backend
from kvcrucible.engine.kernels.blocks import PageCopy, PlaneSection
from kvcrucible.engine.kernels.triton import backend as triton_backend
from kvcrucible.engine.kernels.view import LayerView

#: Names the back-end for calls that name none; for comparison, and where a compiler is there but not to be used.
VARIABLE = "KVCRUCIBLE_KERNELS"


class Backend(Protocol):
    """What a back-end module provides; arguments have been validated."""

    def why_not(self, planes: Sequence[Tensor], block_tables: Tensor | None) -> str | None:
        """Return why the back-end cannot work on these tensors here; None where it can."""

    def append(self, view: LayerView, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write line ``i`` of ``k`` and ``v`` to slot ``slots[i]``, page · P + offset; all differ."""

    def paged_attention(
        self,
        q: Tensor,
        view: LayerView,
        rows: Sequence[int],
        query_lengths: Sequence[int],
        context_lengths: Sequence[int],
        scale: float,
        causal: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return outputs and log-sum-exps."""

    def copy_columns(self, planes: Sequence[Tensor], copies: Sequence[PageCopy]) -> None:
        """Copy columns from page to page in every plane; no page is written twice, or read and written."""

    def pack(self, sections: Sequence[PlaneSection], runs: Sequence[CopyRun]) -> None:
        """Copy every run from device to host in every section; no byte is written twice."""

    def unpack(self, sections: Sequence[PlaneSection], runs: Sequence[CopyRun]) -> None:
        """Copy every run from host to device in every section; no byte is written twice."""


#: Every back-end by its name, the one that is to be preferred first.
BACKENDS: dict[str, Backend] = {"cpu": cpu_backend, "triton": triton_backend, "torch": torch_backend}


def check_name(name: str) -> None:
    """Refuse the name of a back-end that does not exist; raises ``BadArgument``."""
    if name not in BACKENDS:
        raise BadArgument(f"kernel back-end {name!r}", f"{', '.join(BACKENDS)} here", "choose one of these")


def choose(name: str | None, planes: Sequence[Tensor], block_tables: Tensor | None = None) -> Backend:
    """Return the back-end called ``name``, if None the one that ``$KVCRUCIBLE_KERNELS`` names, or the best that works.

    ``planes`` and ``block_tables`` are what it is to work on.  Raises ``BadArgument`` for an unknown name, and for a
    back-end that was asked for by name and cannot do this: another one in its place would hide what was to be seen.
    """
    asked = name or os.environ.get(VARIABLE)
    if asked is None or asked == "":
        return next(one for one in BACKENDS.values() if one.why_not(planes, block_tables) is None)
    check_name(asked)
    reason = BACKENDS[asked].why_not(planes, block_tables)
    if reason is not None:
        raise BadArgument(f"kernel back-end {asked!r}", reason, "leave the name out for the best that works")
    return BACKENDS[asked]
