"""Steps of an example: engine operations, and what the harness itself does around them; all plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from kvcrucible.contract.codec import operation_from_plain, operation_to_plain
from kvcrucible.contract.errors import InputError
from kvcrucible.contract.operations import Operation


@dataclass(frozen=True, slots=True)
class RunEffects:
    """Let up to ``count`` queued device effects take place."""

    count: int


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Let all device effects take place, then read every committed row and compare it with the reference."""


HarnessStep: TypeAlias = RunEffects | ReadBack
Step: TypeAlias = Operation | HarnessStep

_HARNESS: dict[str, type[RunEffects] | type[ReadBack]] = {"RunEffects": RunEffects, "ReadBack": ReadBack}


def step_to_plain(step: Step) -> list[Any]:
    """Return ``[name, fields]``."""
    if isinstance(step, RunEffects | ReadBack):
        return [type(step).__name__, asdict(step)]
    return operation_to_plain(step)


def step_from_plain(plain: Any) -> Step:
    """Rebuild a step; raises ``InputError`` for what is none."""
    if isinstance(plain, list | tuple) and len(plain) == 2 and plain[0] in _HARNESS:
        kind = _HARNESS[plain[0]]
        try:
            return kind(**plain[1])
        except TypeError as error:
            raise InputError(f"step {plain!r:.80}: {error}") from None
    return operation_from_plain(plain)


def steps_from_plain(plain: Iterable[Any]) -> list[Step]:
    """Rebuild a list of steps."""
    return [step_from_plain(step) for step in plain]
