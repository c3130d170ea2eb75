"""Reaches the driver's management library through ``nvidia-ml-py``, or says why it cannot.

A call that the driver refuses is no exception here but a :class:`Missing`: on real machines some reading is always
refused (a virtual machine, a MIG slice, an old driver), and a sample without a reading is worth more than none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from kvcrucible.contract.errors import NotRunError
from kvcrucible.contract.extras import install_remedy
from kvcrucible.perf.nvml.values import PERMANENT, STAND_IN_SYMBOL
from kvcrucible.perf.origin import Origin

T = TypeVar("T")


class NvmlAbsentError(NotRunError):
    """There is no library to ask; the message is ``no NVML: REASON``."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"no NVML: {reason}")

    def __reduce__(self) -> tuple[type[NvmlAbsentError], tuple[str]]:
        """Rebuild from the reason, so that it survives a process boundary."""
        return type(self), (self.reason,)


@dataclass(frozen=True, slots=True)
class Missing:
    """A reading that the driver refused: its status code, and that in words."""

    code: int
    words: str

    def __str__(self) -> str:
        return f"{self.words} (status {self.code})"


class Library:
    """The loaded library.  Made by :func:`open_library` alone, which also closes it.

    ``refused`` collects what was refused, by the name of the reading.
    """

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self.refused: dict[str, Missing] = {}
        # No driver exports the symbol, so this cannot make a measured figure a simulated one.
        self.origin = Origin.SIMULATED if hasattr(binding.nvmlLib, STAND_IN_SYMBOL) else Origin.MEASURED

    def ask(self, reading: str, call: Callable[[], T]) -> T | Missing:
        """Return what ``call`` returns, or why the driver refused it.

        A refusal that cannot change while the driver is loaded is remembered under the name ``reading`` and not asked
        again: a refused call costs as much time as one that works.
        """
        known = self.refused.get(reading)
        if known is not None and known.code in PERMANENT:
            return known
        try:
            value = call()
        except self.binding.NVMLError as error:
            missing = self.refused[reading] = self.missing(int(error.value))
            return missing
        self.refused.pop(reading, None)
        return value

    def missing(self, code: int) -> Missing:
        """Return the status ``code`` in words."""
        return Missing(code, str(self.binding.NVMLError(code)))


@contextmanager
def open_library() -> Iterator[Library]:
    """Load and initialise the library, and shut it down at the end; raises :class:`NvmlAbsentError`, which says why."""
    try:
        import pynvml
    except ImportError:
        raise NvmlAbsentError(f"nvidia-ml-py is not installed; {install_remedy('perf')}") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        words = "the driver's library libnvidia-ml.so.1 was not found" if error.value == 12 else str(error)
        raise NvmlAbsentError(f"{words} (status {int(error.value)})") from None
    try:
        yield Library(pynvml)
    finally:
        # A library that is lost may refuse to shut down as well; what was read stays good.
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def text(value: str | bytes) -> str:
    """Return what the binding calls a string, which is bytes in some releases."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
