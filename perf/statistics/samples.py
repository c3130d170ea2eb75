"""What was measured of one metric: pairs of processes, or exact counts, with the machine and the order.

Every holder of figures takes its origin from the machine's fingerprint, so that none can claim another.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.origin import Origin, common_origin
from kvcrucible.perf.statistics.fingerprint import MachineFingerprint

#: Pairs that one metric may hold; the largest plan needs a thousand.
MAX_PAIRS = 10_000


@dataclass(frozen=True, slots=True)
class PairedSamples:
    """One sampled metric over blocks of two fresh processes, one number a process.

    ``base``, ``head``: by block, in the metric's unit.  ``head_first``: which of the two ran first.  The cycles are
    time × clock (or a count) of the same processes, both empty where the machine does not offer them.  The machine is
    stated for each side: figures of two machines are never compared.

    Raises :class:`InputError` for lengths that differ or are too large, :class:`MixedOriginsError` for a simulated side
    beside a measured one.
    """

    metric: str
    machine_base: MachineFingerprint
    machine_head: MachineFingerprint
    base: tuple[float, ...]
    head: tuple[float, ...]
    head_first: tuple[bool, ...]
    base_cycles: tuple[float, ...] = ()
    head_cycles: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.base) == len(self.head) == len(self.head_first) <= MAX_PAIRS:
            raise InputError(f"{self.metric}: base, head and order have one length, at most {MAX_PAIRS:,}")
        if len(self.base_cycles) != len(self.head_cycles) or len(self.base_cycles) not in (0, len(self.base)):
            raise InputError(f"{self.metric}: cycles are there for every process or for none")
        common_origin((self.machine_base.origin, self.machine_head.origin), self.metric)

    @property
    def pairs(self) -> int:
        """Pairs that are there."""
        return len(self.base)

    @property
    def origin(self) -> Origin:
        """Whether this was measured."""
        return self.machine_base.origin

    def join(self, later: PairedSamples) -> PairedSamples:
        """Return these pairs and then ``later`` ones of the same metric and machines; neither is changed.

        Raises :class:`MixedOriginsError` where one is simulated and the other is not, :class:`InputError` where
        metric or machines differ.
        """
        common_origin((self.origin, later.origin), self.metric)
        mine = (self.metric, self.machine_base, self.machine_head, bool(self.base_cycles))
        if mine != (later.metric, later.machine_base, later.machine_head, bool(later.base_cycles)):
            raise InputError(f"{self.metric}: only pairs of the same metric on the same machines join")
        return PairedSamples(
            self.metric,
            self.machine_base,
            self.machine_head,
            self.base + later.base,
            self.head + later.head,
            self.head_first + later.head_first,
            self.base_cycles + later.base_cycles,
            self.head_cycles + later.head_cycles,
        )


@dataclass(frozen=True, slots=True)
class CountedWork:
    """One exact metric: the count of each process of base and of head.  Raises :class:`InputError` for none of one."""

    metric: str
    machine: MachineFingerprint
    base: tuple[int, ...]
    head: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.base) <= MAX_PAIRS or not 0 < len(self.head) <= MAX_PAIRS:
            raise InputError(f"{self.metric}: base and head have 1 to {MAX_PAIRS:,} counts each")

    @property
    def origin(self) -> Origin:
        """Whether this was counted on a machine."""
        return self.machine.origin
