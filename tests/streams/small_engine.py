"""The geometry of the small engine with a Host tier that tests of devices build."""

from __future__ import annotations

from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry

#: What its pool stores.
PLANES = PlaneSpec(PROFILES["FP32"], Geometry(1, 1, 16), 4)

#: 16 pages of 4 tokens, sequences of up to 64 in 4 rows, and 16 KiB on Host.
CONFIG = EngineConfig((PoolSpec("main", 16, 4, (PLANES,)),), 64, 4, HostSpec(1 << 14))
