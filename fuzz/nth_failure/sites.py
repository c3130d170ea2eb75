"""Where an operation can be failed, and the gate that counts what passes there and fails the k-th.

All of it is injected from outside: the engine is given pools, slots and a device that ask the gate, and has no switch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum


class Site(StrEnum):
    """One kind of call or effect that can fail."""

    #: A pool promises pages to a reservation; fails with ``DeviceCapacity``.
    PROMISE = "page promise"
    #: A pool turns promised pages into leases; fails with ``DeviceCapacity``.
    GRANT = "page grant"
    #: The arena gives out the extents of a transfer; fails with ``HostGeometry``.
    EXTENT = "extent grant"
    #: A copy from Device to Host, or back, does not take place; its event says so.
    COPY_DOWN = "copy to Host"
    COPY_UP = "copy to Device"
    #: A copy between the tiers cannot even be queued.
    COPY_QUEUE = "queueing a copy"
    #: What a transfer has copied is not current when it is about to be published: somebody has taken the page up.
    PUBLICATION = "publication"
    #: The copy of a partial tail, copy-on-write, does not take place.
    TAIL_COPY = "tail copy"
    #: An upload of block-table entries, the publication of a mapping, does not take place.
    TABLE_UPLOAD = "table upload"
    #: An effect cannot even be queued on the compute stream.
    COMPUTE_QUEUE = "queueing an effect"
    #: Queueing a copy between the tiers, or an effect, raises what nobody has foreseen; so does a policy that is asked
    #: or told something.
    COPY_ERROR = "error at a copy"
    EFFECT_ERROR = "error at an effect"
    POLICY_ERROR = "error of the policy"


#: What fails inside the call: the call is refused, or what it was for waits, and nothing has changed.
IN_THE_CALL = frozenset({Site.PROMISE, Site.GRANT, Site.EXTENT})

#: What a transfer answers for: it is abandoned, as if it had been cancelled before anything was copied.
OF_A_TRANSFER = frozenset({Site.COPY_DOWN, Site.COPY_UP, Site.COPY_QUEUE, Site.PUBLICATION})

#: What nothing can make good: the engine is lost and says so, whatever it is asked (decision 0013).
LOSING = frozenset({Site.TAIL_COPY, Site.TABLE_UPLOAD, Site.COMPUTE_QUEUE})

#: What is no failure that anybody knows of: it reaches the caller, and either nothing has changed or the engine is lost
#: (decision 0030).
UNFORESEEN = frozenset({Site.COPY_ERROR, Site.EFFECT_ERROR, Site.POLICY_ERROR})


@dataclass(frozen=True, slots=True)
class Failure:
    """The ``k``-th passage of ``site`` fails, from 1; ``persistent``: and every later one until disarmed."""

    site: Site
    k: int
    persistent: bool

    def __str__(self) -> str:
        return f"{self.site.value} {self.k}{' and all later ones' if self.persistent else ''}"


class Gate:
    """Counts passages by site; while armed it tells which fail."""

    def __init__(self) -> None:
        self.passed: Counter[Site] = Counter()
        #: Passages that have failed since the gate was armed.
        self.failed = 0
        #: Transfers to which failed passages belonged.
        self.transfers: set[int] = set()
        self._failure: Failure | None = None

    def arm(self, failure: Failure) -> None:
        """Count anew, and let ``failure`` happen."""
        self.passed.clear()
        self.transfers.clear()
        self.failed, self._failure = 0, failure

    def disarm(self) -> None:
        """Let everything pass again, and count anew."""
        self.passed.clear()
        self._failure = None

    def fails(self, site: Site, transfer: int | None = None) -> bool:
        """Note one passage; say whether it fails."""
        self.passed[site] += 1
        failure = self._failure
        if failure is None or failure.site is not site:
            return False
        at = self.passed[site]
        failing = at >= failure.k if failure.persistent else at == failure.k
        if failing:
            self.failed += 1
            if transfer is not None:
                self.transfers.add(transfer)
        return failing
