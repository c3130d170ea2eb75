"""What a coverage goal is, and the register of all goals.

Goals judge the generator, not the engine: a goal that is never reached says that a region of inputs was not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.media import labelled
from kvcrucible.contract.operations import Admitted, Identity, Operation, Outcome, Scheduled, Value
from kvcrucible.contract.snapshot import PageState, Snapshot, Tier
from kvcrucible.contract.tokens import Tokens
from kvcrucible.fuzz.setting import Setting
from kvcrucible.reference.accounting import AccountingModel


@dataclass(frozen=True, slots=True)
class Queued:
    """A request in the queue: its session and identity, and the pages of each pool that its cold start takes."""

    session: str | None
    identity: Identity
    cold_pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """What was there before an operation.  ``slack``: pages that it needs minus those it can get (None: not known).

    ``consuming``: queued requests that may take any continuation.  ``prompts``: of queued ones, labelled; ``queued``:
    what else they ask for.  ``tried``: of each, the continuations of which it has started a restore; ``sunk``: those
    that were sunk for it.  ``passers``: active sequences that were let past the head of the queue.  ``trimmed``: those
    of which the last unit kept fewer tokens than it wrote.
    """

    before: Snapshot
    operation: Operation
    slack: int | None
    consuming: frozenset[int] = frozenset()
    prompts: Mapping[int, Tokens] = field(default_factory=dict)
    tried: Mapping[int, frozenset[int]] = field(default_factory=dict)
    sunk: Mapping[int, frozenset[int]] = field(default_factory=dict)
    queued: Mapping[int, Queued] = field(default_factory=dict)
    passers: tuple[int, ...] = ()
    trimmed: frozenset[int] = frozenset()


_NOTED = tuple(part.name for part in fields(Observation))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen(Observation):
    """One operation with both sides: what was there before it, what came of it, and what is there afterwards."""

    outcome: Outcome
    after: Snapshot
    setting: Setting

    @property
    def done(self) -> bool:
        """Whether it was carried out."""
        return self.outcome.refusal is None

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        return self.setting.page_size

    def references(self, owner: int, position: int) -> int:
        """References before the operation to the page of ``owner`` that holds ``position``; 0 where there is none."""
        space = self.before.spaces.get((owner, 0))
        block = position // self.page_size
        if space is None or not 0 <= block < len(space.pages):
            return 0
        return self.before.pages[space.pages[block]].references


@dataclass(frozen=True, slots=True)
class Needs:
    """What it takes to reach a goal, beside one of the operations after which it is asked.

    ``operations``: all of these.  ``backend``: a speculative backend; ``leading``: one that may run ahead; ``host``: a
    Host tier, ``hostless``: none.
    ``able``: anything else of the engine.
    """

    operations: frozenset[str] = frozenset()
    backend: bool = False
    leading: bool = False
    host: bool = False
    hostless: bool = False
    able: Callable[[Capabilities], bool] = lambda able: True


NOTHING = Needs()

#: What only an engine with a prefix cache, with retained sequences, with a backend, with a Host tier can reach.
PREFIX_CACHE = Needs(frozenset({"Lookup"}))
RETAINING = Needs(frozenset({"Release"}))
BACKEND = Needs(backend=True)
HOST = Needs(host=True)
SPECULATION = Needs(able=lambda able: able.speculates)
BACKFILL = Needs(able=lambda able: able.backfills)


@dataclass(frozen=True, slots=True)
class Goal:
    """One situation to be reached; ``after`` names the operations of which an engine has to have at least one."""

    name: str
    statement: str
    reached: Callable[[Seen], bool]
    after: frozenset[str]
    needs: Needs = NOTHING


def observe(
    model: AccountingModel, before: Snapshot, operation: Operation, trimmed: frozenset[int] = frozenset()
) -> Observation:
    """Note what is there before ``operation``; the model has not yet been told of it."""
    queued = model.books.queued
    return Observation(
        before,
        operation,
        model.demand(operation),
        model.consuming(),
        {request: labelled(entry.prompt, entry.spans) for request, entry in queued.items()},
        {request: entry.tried for request, entry in queued.items()},
        {request: entry.sunk for request, entry in queued.items()},
        _queued(model),
        tuple(model.passers()),
        trimmed,
    )


def observe_queue(model: AccountingModel, before: Snapshot, operation: Operation) -> Observation:
    """Note what judging a queue takes, and nothing that only goals ask about."""
    return Observation(before, operation, None, queued=_queued(model), passers=tuple(model.passers()))


def _queued(model: AccountingModel) -> dict[int, Queued]:
    books = model.books
    return {
        request: Queued(
            entry.session, entry.identity, tuple([books.pages(entry.limit, pool) for pool in books.pools])
        )
        for request, entry in books.queued.items()
    }


def reached(observation: Observation, outcome: Outcome, after: Snapshot, setting: Setting) -> Iterator[str]:
    """Yield the names of the goals that this operation reached."""
    noted = {name: getattr(observation, name) for name in _NOTED}
    seen = Seen(**noted, outcome=outcome, after=after, setting=setting)
    for one in _BY_OPERATION.get(type(observation.operation), ()):
        if one.reached(seen):
            yield one.name


def admissions(value: Value) -> tuple[Admitted, ...]:
    """Return the admissions in an operation's value."""
    if isinstance(value, Scheduled):
        return value.admitted
    return (value,) if isinstance(value, Admitted) else ()


def takers(seen: Seen) -> Iterator[tuple[Admitted, int]]:
    """Yield the admissions that started from a continuation which the request might have taken over, with its id: the
    last of its own session, or any where it consumes.
    """
    for one in admissions(seen.outcome.value):
        request = seen.after.sequences.get(one.sequence)
        kept = None if one.source is None else seen.before.continuations.get(one.source)
        if request is None or kept is None:
            continue
        same = kept.session is not None and kept.session == request.session
        if same or one.sequence in seen.consuming:
            yield one, kept.continuation


GOALS: dict[str, Goal] = {}
_BY_OPERATION: dict[type, list[Goal]] = {}


def goal(
    name: str, statement: str, *operations: type, needs: Needs = NOTHING
) -> Callable[[Callable[[Seen], bool]], Callable[[Seen], bool]]:
    """Register a predicate as the goal ``name``, asked after each of ``operations``."""

    def register(predicate: Callable[[Seen], bool]) -> Callable[[Seen], bool]:
        assert name not in GOALS, name
        after = frozenset(operation.__name__ for operation in operations)
        GOALS[name] = one = Goal(name, statement, predicate, after, needs)
        for operation in operations:
            _BY_OPERATION.setdefault(operation, []).append(one)
        return predicate

    return register


def simple(
    name: str, statement: str, predicate: Callable[[Seen], bool], *operations: type, needs: Needs = NOTHING
) -> None:
    """Register ``predicate`` without decorating it."""
    goal(name, statement, *operations, needs=needs)(predicate)


# -- looking into snapshots --------------------------------------------------------------------------------------------


def pages_of(snapshot: Snapshot, owner: int) -> Iterator[PageState]:
    """Yield the pages of a holder, in every pool."""
    for pool in range(len(snapshot.pools)):
        space = snapshot.spaces.get((owner, pool))
        yield from (snapshot.pages[page] for page in space.pages) if space is not None else ()


def resident(snapshot: Snapshot, owner: int) -> bool:
    """Say whether every page of a holder is visible on Device."""
    return all(page.visible is Tier.DEVICE for page in pages_of(snapshot, owner))


def in_transfer(snapshot: Snapshot, owner: int) -> bool:
    """Say whether a page of a holder is in a transfer."""
    return any(page.in_transfer for page in pages_of(snapshot, owner))
