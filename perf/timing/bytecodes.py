"""Counts the bytecode instructions that each function of a package executes: an exact measure of Python work.

The count is the same on every machine, in every run, under any load (for one version of Python and one hash seed), and
it says *where*.  It does not see work inside C calls: time does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

#: What a trace function returns: itself, or None to leave a frame alone.
_Tracer = Callable[[FrameType, str, Any], Any]


def count_bytecodes(work: Callable[[], object], package: str) -> dict[str, int]:
    """Return ``MODULE:FUNCTION`` to the bytecode instructions executed there while ``work()`` ran.

    Only modules whose name begins with ``package`` and a dot count; their names are shown without it.  A debugger or a
    coverage tool that traces this thread is set aside meanwhile and put back.  Slows the code by a factor of 20 or so.
    """
    prefix = package + "."
    counts: dict[Any, int] = {}

    def inside(frame: FrameType, event: str, _: Any) -> _Tracer:
        if event == "opcode":
            counts[frame.f_code] += 1
        return inside

    def enter(frame: FrameType, event: str, _: Any) -> _Tracer | None:
        if not frame.f_globals.get("__name__", "").startswith(prefix):
            return None
        counts.setdefault(frame.f_code, 0)
        modules[frame.f_code] = frame.f_globals["__name__"].removeprefix(prefix)
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return inside

    modules: dict[Any, str] = {}
    before = sys.gettrace()
    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(before)
    named: dict[str, int] = {}
    for code, count in counts.items():
        name = f"{modules[code]}:{code.co_qualname}"
        named[name] = named.get(name, 0) + count
    return dict(sorted(named.items()))
