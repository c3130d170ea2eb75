"""Steps of an example: engine operations, and what the harness itself does around them; all plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
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
    match plain:
        case ["RunEffects" | "ReadBack" as name, dict() as values]:
            kind = _HARNESS[name]
            due = {field.name for field in fields(kind)}
            if set(values) != due or not all(type(value) is int for value in values.values()):
                raise InputError(f"step {name} takes {sorted(due)}, integers; found {values!r:.80}")
            return kind(**values)
    return operation_from_plain(plain)


def steps_from_plain(plain: Any) -> list[Step]:
    """Rebuild a list of steps; raises ``InputError`` for what is none."""
    if not isinstance(plain, list | tuple):
        raise InputError(f"steps are a list, found {plain!r:.80}")
    return [step_from_plain(step) for step in plain]
