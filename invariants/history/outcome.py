"""How judging a history ends: the exceptions that stop it, and the verdict (DESIGN 6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kvcrucible.contract.errors import CrucibleError, ExitStatus


class Broken(CrucibleError):
    """No legal continuation exists: ``rule`` is an invariant's id or the name of a row of the semantics table."""

    def __init__(self, rule: str, reason: str) -> None:
        self.rule, self.reason = rule, reason
        super().__init__(f"{rule}: {reason}")

    def __reduce__(self) -> tuple[type[Broken], tuple[str, str]]:
        """Rebuild from the parts, so that the exception survives a process boundary."""
        return type(self), (self.rule, self.reason)


class Undecided(CrucibleError):
    """The rest cannot be judged: a cap was passed, or the file ends before the history does."""


class Judgement(StrEnum):
    """What was found of a history."""

    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"


_STATUS = {
    Judgement.PASS: ExitStatus.HELD,
    Judgement.FAIL: ExitStatus.VIOLATION,
    Judgement.UNKNOWN: ExitStatus.INCONCLUSIVE,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a check.

    ``line``: where a failure shows or where judging stopped, counted from 1 with the header; the last line read of a
    history that passes.  ``rule``: what a failure breaks.  ``not_judged``: invariants and rules that this history
    cannot show, with the reasons.
    """

    judgement: Judgement
    engine: str
    line: int
    operations: int
    reason: str | None = None
    rule: str | None = None
    not_judged: dict[str, str] = field(default_factory=dict)
    most_entries: int = 0

    @property
    def status(self) -> ExitStatus:
        """The exit status that the verdict stands for."""
        return _STATUS[self.judgement]
