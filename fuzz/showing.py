"""What an engine under judgement shows of itself, and what is its own fault as it does (docs/adapters.md).

Whatever it raises there, a process that it ends, an answer of another kind and a part that it leaves out although its
adapter says that it fills it are all ``engine-fault``.  A part that is left out would be judged by nobody, and nobody
would be told.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvcrucible.contract.errors import OutputFailed
from kvcrucible.contract.snapshot import Snapshot, Touched
from kvcrucible.fuzz.adapters.protocol import EngineAdapter
from kvcrucible.invariants.judgements import ENGINE_FAULT, raised
from kvcrucible.invariants.violation import InvariantViolated, Violation

#: What an engine is doing that ends the process outside an operation.
SHOWING = "showing what it holds"


@contextmanager
def exits_judged(what: str) -> Iterator[None]:
    """Judge an engine that ends the process wherever it is asked something; what else is raised there, by what shows no
    state, is an error of the judge.
    """
    try:
        yield
    except SystemExit as error:
        raise engine_fault(what, error) from error


def snapshot_of(adapter: EngineAdapter) -> Snapshot:
    """Return what an engine shows of its state; what it raises there is its fault, as it is in an operation.

    Raises ``InvariantViolated``, too, where it does not show the free pages or the holes of its Host tier that are
    among the parts that it declares: these two alone may be None.
    """
    try:
        found: object = adapter.snapshot()
    except (Exception, SystemExit) as error:
        raise engine_fault(SHOWING, error) from error
    if not isinstance(found, Snapshot):
        raise answered_wrongly(SHOWING, found, "a Snapshot")
    parts = adapter.capabilities.snapshot_parts
    if found.free_pages is None and "free_pages" in parts:
        raise answered_wrongly(SHOWING, found, "one with its free pages, which snapshot_parts has")
    if found.host is not None and found.host_holes is None and "host_holes" in parts:
        raise answered_wrongly(
            SHOWING, found, "one with the holes of its Host tier, which snapshot_parts has"
        )
    return found


def drained_of(adapter: EngineAdapter) -> tuple[Snapshot, Touched] | None:
    """Return what an engine shows of what it has touched, None where it cannot tell; else as :func:`snapshot_of`."""
    try:
        found: object = adapter.drain()
    except (Exception, SystemExit) as error:
        raise engine_fault(SHOWING, error) from error
    match found:
        case None:
            return None
        case (Snapshot() as partial, Touched() as touched):
            return partial, touched
    raise answered_wrongly(SHOWING, found, "None, or a Snapshot and what was Touched")


def answered_wrongly(what: str, answer: object, due: str) -> InvariantViolated:
    """Return the violation of an engine that answered with something else than is ``due``."""
    found = f"{what} gave a {type(answer).__name__}, and not {due} (docs/adapters.md)"
    return InvariantViolated([Violation(ENGINE_FAULT, found)])


def engine_fault(what: str, error: Exception | SystemExit) -> InvariantViolated:
    """Return the violation; raises ``OutputFailed``, which is the command's own end."""
    if isinstance(error, OutputFailed):
        raise error
    return InvariantViolated([Violation(ENGINE_FAULT, f"{what} raised {raised(error)}")])
