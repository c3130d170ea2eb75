"""Numbers of the driver's management library that are used here, by value.

By value, because the binding renames them between releases (clock event reasons were throttle reasons; the two newest
exist only under the old name), while the numbers are the driver's interface and stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Reasons for a clock below the highest one: bits of the mask that the driver returns.
EVENT_REASONS: Mapping[int, str] = MappingProxyType(
    {
        0x1: "idle",
        0x2: "application clocks",
        0x4: "software power cap",
        0x8: "hardware slowdown",
        0x10: "sync boost",
        0x20: "software thermal slowdown",
        0x40: "hardware thermal slowdown",
        0x80: "hardware power brake",
        0x100: "display clocks",
        0x200: "board limit",
        0x400: "reliability",
    }
)

SOFTWARE_POWER_CAP = 0x4
HARDWARE_SLOWDOWN = 0x8
SOFTWARE_THERMAL = 0x20
HARDWARE_THERMAL = 0x40
POWER_BRAKE = 0x80

#: Counters of the time for which a reason held, in ns since the driver was loaded: name -> field id.  Their deltas show
#: what falls between two polls of the mask.
REASON_COUNTERS: Mapping[str, int] = MappingProxyType(
    {
        "power cap": 74,
        "sync boost": 76,
        "software thermal": 269,
        "hardware thermal": 270,
        "power brake": 271,
    }
)

FIELD_MEMORY_TEMPERATURE = 82
FIELD_TOTAL_ENERGY = 83
FIELD_POWER_INSTANT = 186

#: Scope of a field: the GPU alone, where a board carries more than that.
SCOPE_GPU = 0

#: Status codes after which a call is not tried again: it cannot start to work while the driver stays loaded.
NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND = 3, 4, 13
PERMANENT = frozenset({NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND})

#: Status codes that mean that nothing this device says can be believed: lost, needs a reset.
LOST = frozenset({15, 16})

#: Types of a field's value: number -> name of the union's member.
VALUE_MEMBERS: Mapping[int, str] = MappingProxyType(
    {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
)

#: Symbol that the stand-in of the tests exports and no driver does: what comes from there is SIMULATED.
STAND_IN_SYMBOL = "kvcrucible_nvml_stand_in"


def reason_names(mask: int) -> tuple[str, ...]:
    """Return the names of the bits of ``mask``, lowest first; a bit that is not known is named by its value."""
    names = []
    while mask:
        bit = mask & -mask
        names.append(EVENT_REASONS.get(bit, f"reason {bit:#x}"))
        mask ^= bit
    return tuple(names)
