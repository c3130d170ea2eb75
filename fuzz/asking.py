"""Asks an engine for something: what it raises instead, or answers of another kind, is its fault (DESIGN 7).

``SystemExit`` is among what it may raise: an engine that ends the process has failed, and its status is not the
campaign's.  ``OutputFailed`` is not: that one is the command's own end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from kvcrucible.contract.errors import OutputFailed
from kvcrucible.contract.in_words import in_words
from kvcrucible.contract.operations import Operation
from kvcrucible.contract.snapshot import Snapshot, Touched
from kvcrucible.fuzz.adapters.protocol import EngineAdapter
from kvcrucible.invariants.judgements import ENGINE_FAULT, raised
from kvcrucible.invariants.violation import InvariantViolated, Violation

T = TypeVar("T")

#: What an engine is doing that is asked for its state.
SHOWING = "showing what it holds"


def let(what: str | Operation, act: Callable[[], T], when: str = "") -> T:
    """Let an engine act and return what comes of it.

    Args:
        what: The act, an operation or words; a violation begins with it.  An operation is put into words only then.
        act: What is asked of the engine.
        when: Words in front of ``what``.

    Raises:
        InvariantViolated: ``engine-fault``, for all that the act raised.
        OutputFailed: A device effect found standard output gone.
    """
    try:
        return act()
    except (Exception, SystemExit) as error:
        raise _engine_fault(when + (what if isinstance(what, str) else in_words(what)), error) from error


@contextmanager
def exits_judged() -> Iterator[None]:
    """Judge an engine that ends the process where only its state is looked at.

    Anything else that is raised there passes: it is an error of the judge.
    """
    try:
        yield
    except SystemExit as error:
        raise _engine_fault(SHOWING, error) from error


def snapshot_of(adapter: EngineAdapter) -> Snapshot:
    """Return what an engine shows of its state.

    Raises ``InvariantViolated`` where that is no ``Snapshot``, or one without its free pages or the holes of its Host
    tier though they are among the parts that its adapter declares: these two alone may be None, and what is left out
    would be judged by nobody.
    """
    found: object = let(SHOWING, adapter.snapshot)
    if not isinstance(found, Snapshot):
        raise answered_wrongly(SHOWING, found, "a Snapshot")
    declared = adapter.capabilities.snapshot_parts
    if found.free_pages is None and "free_pages" in declared:
        raise answered_wrongly(SHOWING, found, "one with its free pages, which snapshot_parts has")
    if found.host is not None and found.host_holes is None and "host_holes" in declared:
        raise answered_wrongly(
            SHOWING, found, "one with the holes of its Host tier, which snapshot_parts has"
        )
    return found


def drained_of(adapter: EngineAdapter) -> tuple[Snapshot, Touched] | None:
    """Return what an engine shows of what it has touched, None from one that does not say.

    Raises ``InvariantViolated`` where the answer is neither.
    """
    found: object = let(SHOWING, adapter.drain)
    match found:
        case None:
            return None
        case (Snapshot() as partial, Touched() as touched):
            return partial, touched
    raise answered_wrongly(SHOWING, found, "None, or a Snapshot and what was Touched")


def answered_wrongly(what: str, answer: object, due: str) -> InvariantViolated:
    """Return the violation of an engine that answered with something else than was ``due``."""
    found = f"{what} gave a {type(answer).__name__}, and not {due} (docs/adapters.md)"
    return InvariantViolated([Violation(ENGINE_FAULT, found)])


def _engine_fault(what: str, error: Exception | SystemExit) -> InvariantViolated:
    if isinstance(error, OutputFailed):
        raise error
    return InvariantViolated([Violation(ENGINE_FAULT, f"{what} raised {raised(error)}")])
