"""The back-ends that a kernel campaign knows, and whether each can run here.

Each runs in a process of its own: Triton's interpreter has to be asked for before Triton is imported, and a compiled
kernel that reads where it must not takes only its own process down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

#: Tile of the compiled CPU kernels, of which a page may hold several, and of Triton's in the shipped launch table.
_TILES = {"cpu": 64, "triton": 32}


@dataclass(frozen=True, slots=True)
class Target:
    """Where kernels run: the back-end's name in ``engine/kernels/backends.py``, torch's device, the environment."""

    name: str
    backend: str
    device: str = "cpu"
    environment: Mapping[str, str] = field(default_factory=dict)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("cpu", "cpu"),
        Target("torch", "torch"),
        Target("interpreter", "triton", environment={"TRITON_INTERPRET": "1"}),
        Target("cuda", "triton", "cuda"),
    )
}


def why_not(target: Target) -> str | None:
    """Return why nothing can be run on ``target`` here; None where it can."""
    if find_spec("torch") is None:
        return "torch is not installed (the extra 'engine' brings it)"
    if target.backend == "triton" and find_spec("triton") is None:
        return "Triton is not installed (the extra 'triton' brings it)"
    import torch

    if target.device == "cuda" and not torch.cuda.is_available():
        return "no device"
    if target.backend == "cpu":
        from kvcrucible.engine.kernels import cpu_backend

        return cpu_backend.why_not((), None)
    return None


def smallest_tile(backend: str, page_size: int) -> int:
    """Return after how many positions a back-end rescales at least, for the error budget."""
    return min(page_size, _TILES.get(backend, page_size))
