"""When a rule is offered: by what the engine can do, and by what is there to apply it to.

Asked of the reference model alone, so that what is offered does not depend on the engine under test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvcrucible.fuzz.lockstep import LockStep
from kvcrucible.fuzz.ruling import precondition


def can(*operations: str, there: Callable[[LockStep], Any] = bool) -> Callable[[Any], Any]:
    """Offer a rule only where the engine has the ``operations`` and ``there`` is something to apply them to."""
    return precondition(
        lambda self: self.supported.issuperset(operations) and bool(there(self.lock)), operations
    )


def any_active(lock: LockStep) -> Any:
    """Active sequences."""
    return lock.model.sequences()


def any_idle(lock: LockStep) -> bool:
    """Whether an active sequence is not in flight."""
    return any(not lock.model.in_flight(sequence) for sequence in lock.model.sequences())


def any_held(lock: LockStep) -> Any:
    """Active or retained sequences."""
    return lock.model.sequences() or lock.model.continuations()


def any_kept(lock: LockStep) -> Any:
    """Retained sequences."""
    return lock.model.continuations()


def any_unit(lock: LockStep) -> Any:
    """Units in flight."""
    return lock.model.units


def any_queued(lock: LockStep) -> Any:
    """Queued requests."""
    return lock.model.queue
