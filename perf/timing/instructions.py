"""Counts the instructions of this thread through ``perf_event_open``, where the machine lets it.

Instructions retired in user mode scatter far less than time, and no neighbour moves them much.  Many machines do not
offer them (virtual ones without a counter unit, containers without the right, ``perf_event_paranoid`` above 2), and
then the reason is what is returned.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct
from types import TracebackType

#: Number of the system call, by architecture; there is no wrapper for it in the C library.
_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241}

#: Length in bytes of the first published ``perf_event_attr``, which every kernel since takes.
_ATTRIBUTES_BYTES = 64

_TYPE_HARDWARE, _INSTRUCTIONS = 0, 1

#: Bits of the attribute's flags: begin disabled, leave out the kernel and the hypervisor.
_DISABLED, _NO_KERNEL, _NO_HYPERVISOR = 1 << 0, 1 << 5, 1 << 6

#: Form of what is read: value, time enabled, time running (ns); the last two tell whether the counter was shared.
_READ_FORMAT = 0x1 | 0x2

_ENABLE, _DISABLE, _RESET = 0x2400, 0x2401, 0x2403


class InstructionCounter:
    """An open counter of this thread's user-mode instructions; :func:`open_counter` makes it, ``close`` frees it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.instructions: int | None = None

    def __enter__(self) -> InstructionCounter:
        self.instructions = None
        fcntl.ioctl(self._descriptor, _RESET, 0)
        fcntl.ioctl(self._descriptor, _ENABLE, 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.ioctl(self._descriptor, _DISABLE, 0)
        value, enabled, running = struct.unpack("QQQ", os.read(self._descriptor, 24))
        # A counter that had to be shared counted part of the time; scaled up it would be an estimate, not a count.
        self.instructions = value if running == enabled and value else None

    def close(self) -> None:
        """Free the counter."""
        os.close(self._descriptor)


def open_counter() -> InstructionCounter | str:
    """Return a counter of this thread's instructions, or the reason why there is none."""
    number = _SYSTEM_CALL.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return f"instruction counts are not known on {platform.system()} {platform.machine()}"
    library = ctypes.CDLL(None, use_errno=True)
    flags = _DISABLED | _NO_KERNEL | _NO_HYPERVISOR
    head = struct.pack("IIQQQQQ", _TYPE_HARDWARE, _ATTRIBUTES_BYTES, _INSTRUCTIONS, 0, 0, _READ_FORMAT, flags)
    attributes = ctypes.create_string_buffer(head.ljust(_ATTRIBUTES_BYTES, b"\0"), _ATTRIBUTES_BYTES)
    descriptor = library.syscall(
        ctypes.c_long(number),
        attributes,
        ctypes.c_int(0),
        ctypes.c_int(-1),
        ctypes.c_int(-1),
        ctypes.c_ulong(0),
    )
    if descriptor < 0:
        return f"perf_event_open: {os.strerror(ctypes.get_errno())}"
    counter = InstructionCounter(descriptor)
    # Some virtual machines open the counter and then never move it.
    with counter:
        sum(range(1_000))
    if counter.instructions is None:
        counter.close()
        return "perf_event_open: the counter does not count here"
    return counter
