"""Puts engines before the judge: the same seeded workloads for all, one engine after the other, nothing shrunk.

A cheater is rejected at the first difference, and one of the invariants that are named there has to be one that tells
its cheat.  An honest engine has to get through all workloads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.setting import Depth, Setting
from kvcrucible.fuzz.steps import ReadBack, Step
from kvcrucible.invariants.violation import InvariantViolated, Violation


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one engine: after how many workloads and steps it was rejected, for what, and by which example;
    no violations: it was not.
    """

    engine: str
    workloads: int
    steps: int
    violations: tuple[Violation, ...] = ()
    setting: Setting | None = None
    log: tuple[Step, ...] = ()

    @property
    def rejected(self) -> bool:
        """Whether the judge found anything."""
        return bool(self.violations)

    def told_by(self, invariants: Collection[str]) -> tuple[str, ...]:
        """Return which of ``invariants`` were named."""
        return tuple(dict.fromkeys(v.invariant for v in self.violations if v.invariant in invariants))


def trial(
    engine: str,
    cases: Iterable[tuple[Setting, tuple[Step, ...]]],
    depth: Depth = Depth.LEDGER,
) -> Trial:
    """Drive ``engine`` and the reference through every case until something differs.

    At payload depth every row is read back after every tenth step and at the end, beside where the case says.
    """
    tried = steps = 0
    for setting, case in cases:
        tried += 1
        own = replace(setting, engine=engine, depth=depth)
        example = None
        try:
            example = LockStep(own)
            for number, step in enumerate(case, 1):
                example.step(step)
                steps += 1
                if depth is Depth.PAYLOAD and number % 10 == 0:
                    example.step(ReadBack())
            example.close()
        except InvariantViolated as found:
            log = () if example is None else tuple(example.log)
            return Trial(engine, tried, steps, found.violations, own, log)
    return Trial(engine, tried, steps)
