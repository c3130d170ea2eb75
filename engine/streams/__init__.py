"""Device effects and the order in which they take place (DESIGN 4.7).

Every effect on device memory (KV writes, table uploads, page copies) is submitted to a stream; nothing in the engine
calls a storage directly.
"""

from __future__ import annotations

from kvcrucible.engine.streams.answered import AnsweredStream
from kvcrucible.engine.streams.cuda import CudaDevice
from kvcrucible.engine.streams.fences import UnitFences
from kvcrucible.engine.streams.immediate import ImmediateDevice
from kvcrucible.engine.streams.interface import (
    Completion,
    Device,
    DeviceStream,
    Effect,
    EffectFailed,
    Event,
    Stream,
)
from kvcrucible.engine.streams.simulated import SimulatedDevice

__all__ = [
    "AnsweredStream",
    "Completion",
    "CudaDevice",
    "Device",
    "DeviceStream",
    "Effect",
    "EffectFailed",
    "Event",
    "ImmediateDevice",
    "SimulatedDevice",
    "Stream",
    "UnitFences",
]
