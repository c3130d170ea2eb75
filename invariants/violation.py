"""What a checker reports, and the exception that carries it where a run has to stop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvcrucible.contract.errors import CrucibleError


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant, or a judgement of the harness: its public id, and a message that names the objects, what
    was found and what was due.
    """

    invariant: str
    message: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.message}"


def mismatch(invariant: str, subject: str, found: object, expected: object) -> Violation:
    """Return the violation "subject: found …, expected …"."""
    return Violation(invariant, f"{subject}: found {found}, expected {expected}")


class InvariantViolated(CrucibleError):
    """Raised by a harness that stops at the first violation; ``violations`` holds at least one."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        assert self.violations, "an exception about no violation"
        super().__init__("; ".join(map(str, self.violations)))

    def __reduce__(self) -> tuple[type[InvariantViolated], tuple[tuple[Violation, ...]]]:
        """Rebuild from the violations, so that the exception survives a process boundary."""
        return type(self), (self.violations,)
